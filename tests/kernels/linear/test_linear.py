import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.formats import nvfp4
from ocrquant.formats.precision import Precision
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.extension import extension
from ocrquant.kernels.linear import linear, pack
from ocrquant.kernels.linear.reference import linear_reference
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.program import capture
from ocrquant.kernels.selection import choices
from tests.kernels.linear.operands import (
    BF16,
    BYTE,
    COMBINATIONS,
    make_operand,
    make_rows,
    make_weight,
    quantized,
    row,
)

F32, F64 = torch.float32, torch.float64
NATIVE = extension()
ISAS = ["plain", "avx2", "avx512", "amx"]
# In units of the root mean square of the results, times the root of the number of products: rounding errors
# of fp32 chains with random signs, and room to spare.
TOLERANCE = 2.0**-20


@pytest.fixture(autouse=True)
def _needs_extension():
    if NATIVE is None:
        pytest.skip("the extension is not built")


@pytest.fixture
def isa(request):
    if ISAS.index(request.param) > ISAS.index(NATIVE.best_isa()):
        pytest.skip(f"no {request.param} here")
    NATIVE.force_isa(request.param)
    yield request.param
    NATIVE.force_isa("auto")


def num_rows(x):
    return next(len(form) for form in (x.plain, x.fp8, x.nvfp4) if form is not None)


def exact(x, weight, bias=None):
    """The reference in float64."""
    out = torch.empty(num_rows(x), weight.out_features, dtype=F64)
    wide = Operand(
        plain=None if x.plain is None else x.plain.double(),
        fp8=x.fp8,
        fp8_scale=x.fp8_scale,
        nvfp4=x.nvfp4,
        nvfp4_scale=x.nvfp4_scale,
        encode_scale=x.encode_scale,
    )
    linear_reference(wide, weight, out, bias)
    return out


def run(x, weight, dtype=F32, bias=None):
    out = torch.full((num_rows(x), weight.out_features), 7.0, dtype=dtype)
    linear(x, weight, out, bias)
    assert choices()["linear"].implementation == "native"
    return out


def assert_close(x, weight, bias=None, dtype=F32):
    expected = exact(x, weight, bias)
    actual = run(x, weight, dtype, bias)
    size = expected.pow(2).mean().sqrt() if expected.numel() else 0.0
    allowed = TOLERANCE * weight.in_features**0.5 * size
    if dtype is BF16:
        allowed = allowed + expected.abs() * 2.0**-8
    assert bool(((actual.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("isa", ISAS, indirect=True)
@pytest.mark.parametrize(("precision", "in_codes"), COMBINATIONS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 9, 13])
@pytest.mark.parametrize("shape", [(16, 16), (40, 272), (128, 576)])
def test_agrees_with_the_reference_in_float64(isa, precision, in_codes, rows, shape):
    weight = pack(make_weight(precision, *shape))
    assert_close(make_operand(make_rows(rows, shape[1]), precision, in_codes), weight)


@pytest.mark.parametrize(("precision", "in_codes"), COMBINATIONS)
@pytest.mark.parametrize("case", range(12))
def test_agrees_at_random_shapes_with_bias_and_parts(precision, in_codes, case):
    generator = torch.Generator().manual_seed(case)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    width = 16 * draw(1, 60) if precision is Precision.NVFP4 else draw(1, 900)
    parts = [make_weight(precision, draw(1, 70), width, seed=i, scale=3.0**i) for i in range(draw(1, 3))]
    weight = pack(parts)
    rows = draw(0, 230)
    bias = torch.randn(weight.out_features, generator=generator).to(BF16) if case % 2 else None
    x = make_operand(make_rows(rows, width, seed=case), precision, in_codes)
    assert_close(x, weight, bias, dtype=BF16 if case % 3 else F32)


@pytest.mark.parametrize("isa", ISAS, indirect=True)
@pytest.mark.parametrize(("precision", "in_codes"), COMBINATIONS)
def test_a_row_does_not_depend_on_the_others(isa, precision, in_codes):
    rows, shape = 230, (72, 592)
    weight = pack(make_weight(precision, *shape))
    x = make_operand(make_rows(rows, shape[1]), precision, in_codes)
    together = run(x, weight)
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 11, 97, 193):
        assert torch.equal(run(x.rows(count), weight), together[:count]), count
    for index in (0, 5, 95, 96, 191, 192, 229):
        assert torch.equal(run(row(x, index), weight)[0], together[index]), index


@pytest.mark.parametrize(("precision", "in_codes"), COMBINATIONS)
@pytest.mark.parametrize("rows", [1, 4, 210])
def test_the_number_of_threads_changes_no_bit(precision, in_codes, rows):
    shape = (1200, 1040)
    weight = pack(make_weight(precision, *shape))
    x = make_operand(make_rows(rows, shape[1]), precision, in_codes)
    before, results = NATIVE.num_threads(), []
    try:
        for threads in (1, 2, 4):
            NATIVE.set_num_threads(threads)
            results.append(run(x, weight))
    finally:
        NATIVE.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_instruction_sets_without_tiles_give_the_same_bits_for_nvfp4_codes():
    stored = make_weight(Precision.NVFP4, 90, 336)
    x = quantized(make_rows(9, 336), Precision.NVFP4)
    results = []
    try:
        for name in ISAS[: ISAS.index(NATIVE.best_isa()) + 1]:
            NATIVE.force_isa(name)
            if name != "amx":
                results.append(run(x, pack(stored)))
    finally:
        NATIVE.force_isa("auto")
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("width", [16, 48, 64, 272, 1040])
def test_few_nvfp4_rows_in_integers_and_many_in_tiles_add_up_the_same(width):
    """A pair of blocks is rounded once: by hand, in float64, for scales that make the order matter."""
    if NATIVE.best_isa() != "amx":
        pytest.skip("no amx here")
    weight, x = make_weight(Precision.NVFP4, 20, width), quantized(make_rows(23, width), Precision.NVFP4)
    scales = torch.arange(width // 16).remainder(5).mul(24).add(8).to(BYTE).expand(20, -1)
    weight.block_scale.view(BYTE).copy_(scales)
    one = nvfp4.NVFP4Weight(packed=weight.packed, block_scale=weight.block_scale, encode_scale=torch.ones(1))
    x.encode_scale.fill_(1.0)
    rows = nvfp4.decode(nvfp4.unpack(x.nvfp4), x.nvfp4_scale.view(torch.float8_e4m3fn), torch.ones(1))
    products = rows.double()[:, None] * one.dequantize().double()
    pairs = torch.nn.functional.pad(products, (0, -width % 32)).unflatten(2, (-1, 32)).sum(3).float()
    expected = torch.zeros(23, 20)
    for pair in pairs.unbind(2):
        expected += pair
    packed = pack(one)
    for count in (1, 4, 5, 23):
        assert torch.equal(run(x.rows(count), packed), expected[:count]), count


@pytest.mark.parametrize("isa", ISAS, indirect=True)
@pytest.mark.parametrize("width", [16, 32, 48, 272, 304, 1040])
def test_a_last_single_block_meets_its_own_columns(isa, width):
    """One code of 1 in the last column, and rows of the column numbers."""
    codes = torch.zeros(20, width, dtype=BYTE)
    codes[7, -1] = 2
    one = torch.full((20, width // 16), 0x38, dtype=BYTE).view(torch.float8_e4m3fn)
    weight = nvfp4.NVFP4Weight(packed=nvfp4.pack(codes), block_scale=one, encode_scale=torch.ones(1))
    x = torch.arange(1, width + 1).remainder(251).to(BF16)[None]
    expected = torch.zeros(1, 20)
    expected[0, 7] = x[0, -1]
    assert torch.equal(run(Operand(plain=x), pack(weight)), expected)


@pytest.mark.parametrize(("precision", "in_codes"), COMBINATIONS)
@pytest.mark.parametrize("rows", [1, 5])
def test_writes_strided_rows_and_nothing_else(precision, in_codes, rows):
    weight = pack(make_weight(precision, 21, 48))
    x = make_operand(make_rows(rows, 48), precision, in_codes)
    buffer = torch.full((rows, 64), -3.0, dtype=BF16)
    linear(x, weight, buffer[:, 10:31])
    assert torch.equal(buffer[:, 10:31], run(x, weight, BF16))
    assert (buffer[:, :10] == -3.0).all()
    assert (buffer[:, 31:] == -3.0).all()


def test_merged_parts_equal_the_parts_bit_for_bit():
    parts = [make_weight(Precision.NVFP4, n, 64, seed=n, scale=n) for n in (32, 7, 48)]
    x = quantized(make_rows(3, 64), Precision.NVFP4)
    assert torch.equal(run(x, pack(parts)), torch.cat([run(x, pack(part)) for part in parts], dim=1))


@pytest.mark.parametrize("isa", ISAS, indirect=True)
def test_every_fp8_code_on_both_sides(isa):
    """Row r holds code r once and zeros; the results are the products of all pairs of codes, exactly.

    Beside a code the weight holds zeros, or ones: with AVX-512 a group without zeros is read in another way.
    """
    codes = torch.arange(256, dtype=BYTE)
    finite = codes[(codes & 0x7F) != 0x7F]
    x = torch.zeros(len(finite), 8, dtype=BYTE)
    x[:, 5] = finite
    values = finite.view(torch.float8_e4m3fn).float()
    for beside in (0x00, 0x38):
        weight = torch.full((len(finite), 8), beside, dtype=BYTE)
        weight[:, 5] = finite
        scale = torch.ones(len(finite), 1)
        packed = pack(FP8Weight(codes=weight.view(torch.float8_e4m3fn), decode_scale=scale))
        for rows in (1, len(finite)):
            operand = Operand(fp8=x[-rows:], fp8_scale=torch.ones(rows))
            assert torch.equal(run(operand, packed), values[-rows:, None] * values)


@pytest.mark.parametrize("isa", ISAS, indirect=True)
@pytest.mark.parametrize("in_codes", [False, True])
def test_every_nvfp4_code_and_positive_scale(isa, in_codes):
    """Block b of output o has one code and a scale; the row picks each block in turn."""
    codes = torch.zeros(16, 16, dtype=BYTE)
    codes[:, 3], codes[:, 9] = torch.arange(16, dtype=BYTE), torch.arange(16, dtype=BYTE).flip(0)
    scales = torch.arange(1, 127, dtype=BYTE).view(torch.float8_e4m3fn)
    for scale in scales.float().tolist():
        block_scale = torch.full((16, 1), scale).to(torch.float8_e4m3fn)
        weight = nvfp4.NVFP4Weight(
            packed=nvfp4.pack(codes), block_scale=block_scale, encode_scale=torch.ones(1)
        )
        x = torch.zeros(1, 16, dtype=BF16)
        x[0, 3], x[0, 9] = 1.0, -3.0
        one = torch.full((1, 1), 0x38, dtype=BYTE)
        if in_codes:
            packed_row = nvfp4.pack(nvfp4.encode(x, torch.ones(1, 1), torch.ones(1)))
            operand = Operand(nvfp4=packed_row, nvfp4_scale=one, encode_scale=torch.ones(1))
        else:
            operand = Operand(plain=x)
        expected = x.float() @ weight.dequantize().T
        assert torch.equal(run(operand, pack(weight)), expected)


@pytest.mark.parametrize("isa", ISAS, indirect=True)
@pytest.mark.parametrize("rows", [2, 9])
def test_nan_and_infinity_pass_through(isa, rows):
    x = make_rows(rows, 40)
    x[1, 7] = float("nan")
    for precision in (Precision.BF16, Precision.FP8):
        out = run(Operand(plain=x), pack(make_weight(precision, 20, 40)))
        assert out[1].isnan().all()
        assert out[0].isfinite().all()
    x[1, 7] = float("inf")
    out = run(Operand(plain=x), pack(make_weight(Precision.BF16, 20, 40)))
    assert out[1].isinf().all()
    weight = make_weight(Precision.BF16, 20, 40)
    weight[3, 30], weight[4, 39] = float("nan"), float("-inf")
    out = run(Operand(plain=make_rows(rows, 40)), pack(weight))
    assert out[:, 3].isnan().all()
    assert out[:, 4].isinf().all()
    assert out[:, [*range(3), *range(5, 20)]].isfinite().all()


@pytest.mark.parametrize("isa", ISAS, indirect=True)
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_fp8_nan_codes_pass_through(isa, code):
    for rows in (2, 9):
        x = quantized(make_rows(rows, 40), Precision.FP8)
        x.fp8[1, 8] = code
        weight = make_weight(Precision.FP8, 20, 40)
        out = run(x, pack(weight), BF16)
        assert out[1].isnan().all()
        assert out[0].isfinite().all()
        weight.codes.view(BYTE)[17, 2] = code
        out = run(quantized(make_rows(rows, 40), Precision.FP8), pack(weight), BF16)
        assert out[:, 17].isnan().all()
        assert out[:, :17].isfinite().all()


@pytest.mark.parametrize("isa", ISAS, indirect=True)
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_bf16_results_are_the_float32_ones_rounded_once(isa, rows):
    """Subnormals, NaN and both signs among them, in pairs of panels and in a last, narrower one."""
    x = quantized(make_rows(rows, 40), Precision.FP8)
    x.fp8_scale.copy_(torch.logspace(-64, -60, rows, base=2.0))
    weight = make_weight(Precision.FP8, 16 * 5 + 7, 40)
    weight.decode_scale.copy_(torch.logspace(-92, -70, 87, base=2.0)[:, None])
    weight.codes.view(BYTE)[19, 3] = 0xFF
    exactly = run(x, pack(weight))
    assert (exactly.abs() < 2.0**-126).logical_and(exactly != 0).any()
    assert exactly[:, 19].isnan().all()
    rounded = run(x, pack(weight), BF16)
    # torch writes another NaN where it converts several at once.
    expected = exactly.to(BF16).view(torch.int16).masked_fill(exactly.isnan(), 0x7FC0)
    assert torch.equal(rounded.view(torch.int16), expected)


def test_large_and_tiny_rows_keep_their_range_under_fp8_weights():
    weight = pack(make_weight(Precision.FP8, 16, 32))
    x = make_rows(3, 32)
    scaled = torch.stack([x[0] * 2.0**100, x[1] * 2.0**-100, x[2]])
    out = run(Operand(plain=scaled), weight)
    plain = run(Operand(plain=x), weight)
    assert torch.equal(out, plain * torch.tensor([2.0**100, 2.0**-100, 1.0])[:, None])


def test_a_thread_that_flushes_subnormals_changes_nothing():
    codes = torch.full((16, 8), 1, dtype=BYTE)
    weight = pack(FP8Weight(codes=codes.view(torch.float8_e4m3fn), decode_scale=torch.ones(16, 1)))
    x = quantized(make_rows(1, 8), Precision.FP8)
    expected = run(x, weight)
    assert expected.any()
    torch.set_flush_denormal(True)
    try:
        assert torch.equal(run(x, weight), expected)
    finally:
        torch.set_flush_denormal(False)


def test_runs_inside_a_program():
    weight = pack(make_weight(Precision.NVFP4, 48, 64))
    x = quantized(make_rows(3, 64), Precision.NVFP4)
    out = torch.zeros(3, 48, dtype=BF16)
    with capture(x, weight, out) as program:
        linear(x, weight, out)
    assert not out.any()
    program.run()
    assert torch.equal(out, run(x, weight, BF16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_run_the_reference(dtype):
    weight, x = torch.randn(5, 7, dtype=dtype), torch.randn(3, 7, dtype=dtype)
    out = torch.empty(3, 5, dtype=dtype)
    linear(Operand(plain=x), pack(weight), out)
    assert choices()["linear"].implementation == "reference"
    assert torch.allclose(out, x @ weight.T, atol=1e-5)


def test_refuses_what_does_not_fit():
    weight = pack(make_weight(Precision.NVFP4, 16, 32))
    x = quantized(make_rows(2, 32), Precision.FP8)
    with pytest.raises(ShapeError, match="plain rows or nvfp4 codes"):
        linear(x, weight, torch.empty(2, 16, dtype=BF16))
    x = Operand(plain=make_rows(2, 32))
    with pytest.raises(ShapeError, match=r"op linear: out: expected shape \[R, n\] with n = 16"):
        linear(x, weight, torch.empty(2, 17, dtype=BF16))
    with pytest.raises(ShapeError, match="out: expected a dense last dimension"):
        linear(x, weight, torch.empty(16, 2, dtype=BF16).T)
    with pytest.raises(ShapeError, match="bias"):
        linear(x, weight, torch.empty(2, 16, dtype=BF16), torch.zeros(15, dtype=BF16))
    with pytest.raises(ShapeError, match=r"x\.plain: expected shape \[R, w\] with w = 32"):
        linear(Operand(plain=make_rows(2, 48)), weight, torch.empty(2, 16, dtype=BF16))
    with pytest.raises(ShapeError, match=r"x\.plain: expected torch\.bfloat16"):
        linear(
            Operand(plain=torch.zeros(2, 32)),
            pack(make_weight(Precision.BF16, 16, 32)),
            torch.empty(2, 16),
        )
