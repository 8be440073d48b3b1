import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.rms_norm import rms_norm
from ocrquant.kernels.rms_norm.reference import rms_norm_reference
from tests.kernels.producing import (
    BF16,
    Producer,
    allocate,
    assert_close,
    every_check,
    needs_native,
    randn,
)

EPS = 1e-6


def producer(rule, with_delta):
    def inputs(rows, width, generator):
        tensors = {"x": randn((rows, width), generator), "weight": randn((width,), generator).float()}
        return {**tensors, "delta": randn((rows, width), generator)} if with_delta else tensors

    return Producer(
        run=lambda i, out: rms_norm(i["x"], i["weight"], EPS, out, rule, i.get("delta")),
        reference=lambda i, out: rms_norm_reference(i["x"], i["weight"], EPS, out, rule, i.get("delta")),
        inputs=inputs,
        shared=("weight",),
    )


@needs_native
@every_check
@pytest.mark.parametrize("rule", ["unit", "scaled"])
def test_producer(check, rule):
    check(producer(rule, with_delta=False))


@needs_native
@pytest.mark.parametrize("width", [1, 8, 33, 192, 5120])
def test_the_residual_stream_is_rounded_and_then_normalised(width):
    case = producer("unit", with_delta=True)
    inputs = case.make(9, width)
    stream = (inputs["x"].float() + inputs["delta"].float()).to(BF16)
    out, expected = torch.empty(9, width, dtype=BF16), torch.empty(9, width, dtype=BF16)
    case.run(inputs, Operand(plain=out))
    assert torch.equal(inputs["x"], stream)
    rms_norm_reference(stream, inputs["weight"], EPS, Operand(plain=expected), "unit")
    assert_close(out, expected, most_steps=1)


@needs_native
def test_a_replay_goes_on_adding_to_the_stream():
    from ocrquant.kernels.program import capture

    x, delta = torch.ones(1, 16, dtype=BF16), torch.ones(1, 16, dtype=BF16)
    weight, out = torch.zeros(16), allocate(1, 16)
    with capture(out) as program:
        rms_norm(x, weight, EPS, out, "unit", delta)
    program.run()
    program.run()
    assert x.tolist() == [[3.0] * 16]


def test_values_worked_out_by_hand():
    # Mean square 4, eps 0: x / 2. Unit weights count from one.
    x = torch.tensor([[2.0, -2.0, 2.0, 2.0]], dtype=BF16)
    weight = torch.tensor([0.0, 1.0, -0.5, 2.0**-8])
    out = torch.empty(1, 4, dtype=BF16)
    rms_norm(x, weight, 0.0, Operand(plain=out), "unit")
    assert out.tolist() == [[1.0, -2.0, 0.5, 1.0]]  # 1 + 2^-8 is a tie and goes to the even 1
    rms_norm(x, weight, 0.0, Operand(plain=out), "scaled")
    assert out.tolist() == [[0.0, -1.0, -0.5, 2.0**-8]]
    rms_norm(torch.zeros_like(x), weight, EPS, Operand(plain=out), "unit")
    assert out.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("rule", ["unit", "scaled"])
def test_reference_is_the_norm_of_hugging_face(rule):
    from transformers.models.ernie4_5 import modeling_ernie4_5 as ernie
    from transformers.models.paddleocr_vl import modeling_paddleocr_vl as paddle
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    classes = {
        "unit": [qwen.Qwen3_5RMSNorm],
        "scaled": [paddle.PaddleOCRRMSNorm, ernie.Ernie4_5RMSNorm],
    }
    generator = torch.Generator().manual_seed(0)
    x, weight = randn((200, 192), generator), randn((192,), generator)
    outs = {name: torch.empty_like(x) for name in classes}
    for name, out in outs.items():
        rms_norm_reference(x, weight.float(), 1e-5, Operand(plain=out), name)
    for cls in classes[rule]:
        module = cls(192, eps=1e-5).to(BF16)
        with torch.no_grad():
            module.weight.copy_(weight)
            assert torch.equal(module(x), outs[rule])
            module.weight.copy_(weight - 1.0 if rule == "unit" else weight + 1.0)
            # The two rules are not one with another weight: the casts lie elsewhere.
            other = outs["scaled" if rule == "unit" else "unit"]
            assert not torch.equal(module(x), other)


def test_is_exact_in_float64():
    x, weight = torch.randn(3, 20, dtype=torch.float64), torch.randn(20)
    out = torch.empty_like(x)
    rms_norm(x, weight, EPS, Operand(plain=out), "unit")
    expected = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * (1.0 + weight.double())
    assert torch.allclose(out, expected, rtol=1e-14, atol=0)


def test_refuses_what_its_contract_excludes():
    x, weight = torch.zeros(2, 32, dtype=BF16), torch.zeros(32)
    with pytest.raises(ShapeError, match=r"op rms_norm: rule: expected unit or scaled, got other"):
        rms_norm(x, weight, EPS, allocate(2, 32), "other")
    with pytest.raises(ShapeError, match=r"op rms_norm: weight: expected torch.float32, got torch.bfloat16"):
        rms_norm(x, weight.to(BF16), EPS, allocate(2, 32), "unit")
    with pytest.raises(ShapeError, match=r"op rms_norm: delta: expected .* R = 2, got \[1, 32\]"):
        rms_norm(x, weight, EPS, allocate(2, 32), "unit", x[:1])
