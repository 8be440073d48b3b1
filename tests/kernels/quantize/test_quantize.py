"""Where rows become codes: every form against bytes worked out by hand, then against formats."""

import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.formats.scale_layout import swizzle
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.quantize import quantize
from ocrquant.kernels.quantize.reference import quantize_reference
from tests.kernels.producing import (
    BF16,
    ISAS,
    Producer,
    allocate,
    assert_same,
    every_check,
    instruction_set,
    needs_native,
    randn,
)

PRODUCER = Producer(
    run=lambda i, out: quantize(i["x"], out),
    reference=lambda i, out: quantize_reference(i["x"], out),
    inputs=lambda rows, width, generator: {"x": randn((rows, width), generator)},
)
NAN, INF = float("nan"), float("inf")
TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


@needs_native
@every_check
def test_producer(check):
    check(PRODUCER)


@pytest.fixture(params=["reference", *ISAS])
def forms_of(request):
    """A function from rows and a global scale to their operand, by one implementation."""

    def run(rows, encode_scale=1.0):
        x = torch.tensor(rows, dtype=BF16)
        out = allocate(*x.shape)
        if out.encode_scale is not None:
            out = Operand(
                plain=out.plain,
                fp8=out.fp8,
                fp8_scale=out.fp8_scale,
                nvfp4=out.nvfp4,
                nvfp4_scale=out.nvfp4_scale,
                encode_scale=torch.tensor([encode_scale]),
            )
        if request.param == "reference":
            quantize_reference(x, out)
        else:
            with instruction_set(request.param):
                quantize(x, out)
        return out

    if request.param != "reference":
        pytest.importorskip("ocrquant._native")
    return run


def test_fp8_bytes(forms_of):
    # The largest magnitude is 448, so the scale is 1. 17 lies between 16 and 18 and goes to the even code, 19
    # to 20; 2^-10 is half the smallest step, and 3 * 2^-10 is one and a half.
    out = forms_of(
        [[448.0, -448.0, 1.0, -0.0, 0.0, 17.0, -19.0, 2.0**-10, 3 * 2.0**-10, -(2.0**-10), 2.0**-6]]
    )
    assert out.fp8_scale.tolist() == [1.0]
    assert out.fp8[0].tolist() == [0x7E, 0xFE, 0x38, 0x80, 0, 0x58, 0xDA, 0, 2, 0x80, 8]


def test_fp8_scales_floor_zero_nan_and_infinity(forms_of):
    out = forms_of(
        [[0.0, -0.0, 0.0], [1e-4, 0.0, 0.0], [1.0, NAN, -1.0], [INF, 2.0, -2.0], [896.0, -1.0, 2.0]]
    )
    floor = (torch.ones(()) / (448.0 * 512.0)).item()
    assert out.fp8_scale[:2].tolist() == [floor, floor]
    assert out.fp8[0].tolist() == [0, 0x80, 0]
    assert out.fp8_scale[2].isnan()
    assert {code & 0x7F for code in out.fp8[2].tolist()} == {0x7F}
    assert out.fp8_scale[3] == INF
    assert [out.fp8[3, 0].item() & 0x7F, *out.fp8[3, 1:].tolist()] == [0x7F, 0, 0x80]
    assert out.fp8_scale[4] == 2.0
    assert out.fp8[4].tolist() == [0x7E, 0xB0, 0x38]


def test_nvfp4_bytes_of_all_ties(forms_of):
    # The largest magnitude is 6 and G is 1: the block scale is 1, E4M3 code 0x38.
    out = forms_of([[*TIES, 6.0, *[-tie for tie in TIES], -6.0]])
    assert out.nvfp4_scale.tolist() == [[0x38]]
    assert out.nvfp4.tolist() == [[0x20, 0x42, 0x64, 0x76, 0xA8, 0xCA, 0xEC, 0xFE]]


def test_nvfp4_zero_block_and_signed_zero(forms_of):
    out = forms_of([[0.0] * 16 + [-0.0, 0.0] * 8])
    assert out.nvfp4_scale.tolist() == [[0, 0]]
    assert out.nvfp4.tolist() == [[0] * 8 + [0x08] * 8]


def test_nvfp4_scale_that_rounds_to_zero_keeps_only_signs(forms_of):
    # 6 * 2^-10 / 6 is half the smallest E4M3 number and goes to the even code, zero; a little more does not.
    out = forms_of([[-6 * 2.0**-10, 6 * 2.0**-10, *[0.0] * 14, 6.0625 * 2.0**-10, *[0.0] * 15]])
    assert out.nvfp4_scale.tolist() == [[0, 1]]
    assert out.nvfp4[0, :8].tolist() == [0x08, *[0] * 7]
    assert out.nvfp4[0, 8:].tolist() == [0x05, *[0] * 7]  # 6.06 * 2^-10 is 3.03 steps of 2^-9: code of 3


def test_nvfp4_saturates_beyond_the_calibrated_range(forms_of):
    out = forms_of([[6.0 * 448.0 * 4.0, -6.0 * 448.0 * 4.0, 448.0, *[0.0] * 13]])
    assert out.nvfp4_scale.tolist() == [[0x7E]]
    assert out.nvfp4[0, :2].tolist() == [0xF7, 0x02]


def test_nvfp4_nan_and_infinity_stay_in_their_block(forms_of):
    out = forms_of([[NAN, -1.0, *[1.0] * 14, -INF, INF, -1.0, *[0.0] * 13, 6.0, *[0.0] * 15]])
    assert out.nvfp4_scale.tolist() == [[0x7F, 0x7E, 0x38]]
    assert out.nvfp4[0, :8].tolist() == [0xF7, *[0x77] * 7]
    assert out.nvfp4[0, 8:16].tolist() == [0x7F, 0x08, *[0] * 6]
    assert out.nvfp4[0, 16:].tolist() == [0x07, *[0] * 7]


def test_nvfp4_elements_are_divided_by_scale_over_global_scale(forms_of):
    # G * (1 / 6) = 0.5: E4M3 0x30. 0.25 / (0.5 / 3) = 1.5: code 3.
    out = forms_of([[1.0, 0.25, *[0.0] * 14]], encode_scale=3.0)
    assert out.nvfp4_scale.tolist() == [[0x30]]
    assert out.nvfp4[0, 0] == 0x37


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("encode_scale", [1.0, 2688.0 / 3.3, 1e-6, 7.7e12, 1e-28, 1e33])
def test_every_bf16_beside_every_size_of_block(isa, encode_scale):
    """All 65536 values, NaN of either sign too, sorted and shuffled: equal to formats in every byte."""
    values = torch.arange(-(2**15), 2**15).to(torch.int16).view(BF16)
    generator = torch.Generator().manual_seed(int(min(encode_scale, 1e13)))
    finite = values[values.isfinite() & (values.abs() < 1e30)]
    near = (torch.randn(2**16, generator=generator) * 2.0 ** torch.randint(-9, 9, (2**16,))).to(BF16)
    for x in (values, values[torch.randperm(2**16, generator=generator)], finite[: 2**15], near):
        # Sorted, neighbours share a block; shuffled, nearly every block holds something huge.
        rows = x.reshape(-1, 64)
        out, expected = (
            Operand(
                fp8=torch.empty(rows.shape, dtype=torch.uint8),
                fp8_scale=torch.empty(len(rows)),
                nvfp4=torch.empty(len(rows), 32, dtype=torch.uint8),
                nvfp4_scale=torch.empty(len(rows), 4, dtype=torch.uint8),
                encode_scale=torch.tensor([encode_scale]),
            )
            for _ in range(2)
        )
        with instruction_set(isa):
            quantize(rows, out)
        quantize_reference(rows, expected)
        has_nan = rows.isnan().any(dim=1)
        assert torch.equal(out.fp8_scale.isnan(), has_nan)
        assert torch.equal(out.fp8_scale[~has_nan], expected.fp8_scale[~has_nan])
        assert torch.equal(out.fp8, expected.fp8)
        assert_same(out, expected, names=("nvfp4", "nvfp4_scale"))


@needs_native
@pytest.mark.parametrize("isa", ISAS)
def test_elements_at_and_beside_every_tie_of_many_divisors(isa):
    """Quotients that a divisor's rounded reciprocal alone would take to the other side of a tie."""
    generator = torch.Generator().manual_seed(0)
    ties = torch.tensor(TIES)
    codes = torch.arange(0x20, 0x60).to(torch.uint8).reshape(-1, 1)
    for encode_scale in (1.0, 4.0, *(torch.rand(100, generator=generator) * 3 + 0.5).tolist()):
        # A first element of 6 s / G makes s the block's scale.
        divisor = codes.view(torch.float8_e4m3fn).float() / torch.tensor(encode_scale)
        at = (ties * divisor).to(BF16).view(torch.int16)
        x = torch.cat(
            [(6 * divisor).to(BF16), at.view(BF16), (at - 1).view(BF16), -ties[:1] * divisor], dim=1
        ).to(BF16)
        if encode_scale == 1.0:
            alone = x[:, 1:8].float() * (1 / divisor)
            assert torch.equal(x[:, 1:8].float() / divisor, ties.expand(len(x), -1))
            assert int((alone != ties).sum()) > 20
        out, expected = (
            OperandSpec(fp8=True, nvfp4_encode_scale=torch.tensor([encode_scale])).allocate(
                *x.shape, BF16, x.device
            )
            for _ in range(2)
        )
        with instruction_set(isa):
            quantize(x, out)
        quantize_reference(x, expected)
        assert_same(out, expected, names=("fp8", "fp8_scale", "nvfp4", "nvfp4_scale"))


def test_in_place():
    x = randn((3, 32), torch.Generator().manual_seed(0))
    before = x.clone()
    quantize(x, Operand(plain=x))
    assert torch.equal(x, before)


def test_takes_other_dtypes_through_the_reference():
    x = torch.randn(2, 32, dtype=torch.float64)
    out = Operand(plain=torch.empty_like(x))
    quantize(x, out)
    assert torch.equal(out.plain, x)


def test_refuses_what_its_contract_excludes():
    x = torch.zeros(2, 32, dtype=BF16)
    with pytest.raises(
        ShapeError, match=r"op quantize: out.plain: expected torch.bfloat16, got torch.float32"
    ):
        quantize(x, Operand(plain=torch.zeros(2, 32)))
    with pytest.raises(ShapeError, match=r"op quantize: out: expected at least one form, got none"):
        quantize(x, Operand())
    with pytest.raises(ShapeError, match=r"op quantize: out.fp8: expected .* R = 2, got \[3, 32\]"):
        quantize(x, allocate(3, 32, plain=False))
    with pytest.raises(ShapeError, match=r"op quantize: x: expected a dense last dimension"):
        quantize(x.t(), allocate(32, 2))


def test_a_calibrated_fp8_scale_stands_for_that_of_the_token():
    x = torch.tensor([[1.0, -3.0, 500.0, 0.25]]).to(torch.bfloat16)
    scale = torch.tensor([0.5])
    out = OperandSpec(fp8=True, fp8_decode_scale=scale).allocate(1, 4, x.dtype, x.device)
    assert out.fp8_scale is None
    quantize(x, out)
    # 2, -6, saturated 448, 0.5 by hand: exponent bias 7, three mantissa bits.
    assert out.fp8.tolist() == [[0x40, 0xCC, 0x7E, 0x30]]


def test_swizzled_scales_are_the_same_scales_with_their_padding_written():
    torch.manual_seed(0)
    x = torch.randn(130, 96).to(torch.bfloat16)
    encode_scale = torch.tensor([37.0])
    rowwise = OperandSpec(nvfp4_encode_scale=encode_scale).allocate(130, 96, x.dtype, x.device)
    tiled = OperandSpec(nvfp4_encode_scale=encode_scale, swizzles=True).allocate(130, 96, x.dtype, x.device)
    tiled.nvfp4_swizzled.fill_(0xFF)
    quantize(x, rowwise)
    quantize(x, tiled)
    assert torch.equal(tiled.nvfp4, rowwise.nvfp4)
    assert torch.equal(tiled.nvfp4_swizzled, swizzle(rowwise.nvfp4_scale))
