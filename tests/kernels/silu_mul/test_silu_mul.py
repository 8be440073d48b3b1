import pytest
import torch
from torch.nn import functional as F

from ocrquant.errors import ShapeError
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.silu_mul import silu_mul
from ocrquant.kernels.silu_mul.reference import silu_mul_reference
from tests.kernels.producing import BF16, Producer, allocate, bf16_steps, every_check, needs_native, randn

PRODUCER = Producer(
    run=lambda i, out: silu_mul(i["gate_up"], out),
    reference=lambda i, out: silu_mul_reference(i["gate_up"], out),
    inputs=lambda rows, width, generator: {"gate_up": randn((rows, 2 * width), generator, 2.0)},
)


@needs_native
@every_check
def test_producer(check):
    check(PRODUCER)


def silu_of_every_bf16():
    """Result for every gate with up = 1, native and by Hugging Face's composition."""
    gate = torch.arange(-(2**15), 2**15).to(torch.int16).view(1, -1).view(BF16)
    up = torch.ones_like(gate)
    out = torch.empty_like(gate)
    silu_mul(torch.cat((gate, up), dim=1), Operand(plain=out))
    return gate, out, F.silu(gate) * up


@needs_native
def test_every_gate_agrees_with_torch():
    # Torch's exponential and ours round differently; that moves no result by more than one step.
    _, out, expected = silu_of_every_bf16()
    steps = bf16_steps(out, expected)
    assert int(steps.max()) <= 1
    assert int((steps > 0).sum()) <= 4


def test_limits():
    gate, out, _ = silu_of_every_bf16()
    assert bool(out[gate.isnan()].isnan().all())
    assert out[gate == float("inf")].item() == float("inf")
    assert bool(out[gate == float("-inf")].isnan().all())  # -inf / inf, as in torch
    assert bool((out[(gate < -100) & gate.isfinite()] == 0).all())
    assert bool(torch.signbit(out[gate == 0]).any())


@pytest.mark.parametrize("module", ["qwen3_5", "paddleocr_vl"])
def test_reference_is_the_mlp_of_hugging_face(module):
    from transformers.models.paddleocr_vl import modeling_paddleocr_vl as paddle
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    if module == "qwen3_5":
        mlp = qwen.Qwen3_5MLP(qwen.Qwen3_5TextConfig(hidden_size=32, intermediate_size=48), 48)
    else:
        config = paddle.PaddleOCRTextConfig(hidden_size=32, intermediate_size=48)
        mlp = paddle.PaddleOCRMLP(config)
    mlp = mlp.to(BF16)
    x = randn((64, 32), torch.Generator().manual_seed(0), 4.0)
    with torch.no_grad():
        seen = []
        mlp.down_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        mlp(x)
        out = torch.empty(64, 48, dtype=BF16)
        silu_mul_reference(torch.cat((mlp.gate_proj(x), mlp.up_proj(x)), dim=1), Operand(plain=out))
        unrounded = (F.silu(mlp.gate_proj(x).float()) * mlp.up_proj(x).float()).to(BF16)
    assert torch.equal(out, seen[0])
    assert not torch.equal(unrounded, seen[0])


def test_refuses_what_its_contract_excludes():
    with pytest.raises(ShapeError, match=r"op silu_mul: gate_up: expected an even width, got 33"):
        silu_mul(torch.zeros(2, 33, dtype=BF16), allocate(2, 16))
    with pytest.raises(ShapeError, match=r"op silu_mul: out.plain: expected .* w = 32, got \[2, 16\]"):
        silu_mul(torch.zeros(2, 64, dtype=BF16), allocate(2, 16))
