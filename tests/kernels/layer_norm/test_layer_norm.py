import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.layer_norm import layer_norm
from ocrquant.kernels.layer_norm.reference import layer_norm_reference
from ocrquant.kernels.program import capture
from tests.kernels.producing import (
    BF16,
    ISAS,
    MOST_FLIPS,
    bf16_steps,
    instruction_set,
    needs_native,
    randn,
    threads,
)

EPS = 1e-6


def make(rows, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = randn((rows, width), generator) + 1.0
    return x, randn((width,), generator).float(), randn((width,), generator).float()


def normed(x, weight, bias):
    out = torch.full(x.shape, 7.0, dtype=x.dtype)
    layer_norm(x, weight, bias, EPS, out)
    return out


def assert_near(out, expected):
    """Few flips; where the sum with the bias cancels, a float32 step is more than one of bf16's."""
    steps = bf16_steps(out, expected)
    assert int((steps > 0).sum()) <= max(1, 2 * MOST_FLIPS * steps.numel())
    off = (out.float() - expected.float()).abs()
    assert bool(((steps <= 1) | (off < 1e-5)).all())


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (5, 33), (0, 16), (200, 1152), (64, 4608)])
def test_equals_the_reference(rows, width):
    x, weight, bias = make(rows, width)
    out, expected = normed(x, weight, bias), torch.empty_like(x)
    layer_norm_reference(x, weight, bias, EPS, expected)
    assert_near(out, expected)


def test_values_worked_out_by_hand():
    # Mean 3, variance 4: -1, -1, 1, 1.
    x = torch.tensor([[1.0, 1.0, 5.0, 5.0]], dtype=BF16)
    weight, bias = torch.tensor([1.0, 2.0, 1.0, 2.0]), torch.tensor([0.0, 0.5, 1.0, 2.0**-7])
    out = torch.empty_like(x)
    layer_norm(x, weight, bias, 0.0, out)
    assert out.tolist() == [[-1.0, -1.5, 2.0, 2.0]]  # 2 + 2^-7 is a tie and goes to the even 2


def test_the_module_of_torch_differs_by_flips():
    x, weight, bias = make(100, 1152)
    module = torch.nn.LayerNorm(1152, eps=EPS).to(BF16)
    expected = torch.empty_like(x)
    layer_norm_reference(x, weight, bias, EPS, expected)
    with torch.no_grad():
        module.weight.copy_(weight)
        module.bias.copy_(bias)
        assert_near(module(x), expected)  # its bf16 kernel sums in another order


@needs_native
def test_rows_do_not_depend_on_batch_threads_or_instruction_set():
    x, weight, bias = make(60, 1152)
    with threads(1), instruction_set("plain"):
        expected = normed(x, weight, bias)
    assert torch.equal(normed(x, weight, bias), expected)
    assert torch.equal(normed(x[7:9], weight, bias), expected[7:9])
    x[3] = torch.nan
    assert torch.equal(normed(x, weight, bias)[4:], expected[4:])


@needs_native
@pytest.mark.parametrize("width", [1, 31, 32, 100])
def test_subnormal_numbers_and_nan_have_the_same_bits_everywhere(width):
    x, weight, bias = make(6, width)
    weight, bias = weight * 1e-39, bias * 1e-39
    bias[width // 2] = torch.nan
    with instruction_set("plain"):
        expected = normed(x, weight, bias).view(torch.int16)
    assert torch.equal(normed(x, weight, bias).view(torch.int16), expected)
    assert bool((expected[:, width // 2] == 0x7FC0).all())


@needs_native
@pytest.mark.parametrize("isa", ISAS)
def test_strided_and_in_place(isa):
    x, weight, bias = make(4, 40)
    with instruction_set(isa):
        expected = normed(x, weight, bias)
        wide = torch.full((4, 50), torch.nan, dtype=BF16)
        view = wide[:, 5:45]
        view.copy_(x)
        layer_norm(view, weight, bias, EPS, view)
    assert torch.equal(view, expected)
    assert bool(wide[:, :5].isnan().all())
    assert bool(wide[:, 45:].isnan().all())


@needs_native
def test_a_replay_follows_its_input():
    x, weight, bias = make(3, 24)
    out = torch.empty_like(x)
    with capture() as program:
        layer_norm(x, weight, bias, EPS, out)
    x.copy_(make(3, 24, seed=1)[0])
    program.run()
    assert torch.equal(out, normed(x, weight, bias))


def test_refuses_what_its_contract_excludes():
    x, weight, bias = make(2, 8)
    with pytest.raises(ShapeError, match=r"op layer_norm: bias: expected .* w = 8, got \[4\]"):
        layer_norm(x, weight, bias[:4], EPS, torch.empty_like(x))
    with pytest.raises(ShapeError, match=r"op layer_norm: out: expected torch.bfloat16, got torch.float32"):
        layer_norm(x, weight, bias, EPS, torch.empty(2, 8))
