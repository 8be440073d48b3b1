import pytest
import torch
from torch.nn import functional as F

from ocrquant.errors import ShapeError
from ocrquant.kernels.gated_rms_norm import gated_rms_norm
from ocrquant.kernels.gated_rms_norm.reference import gated_rms_norm_reference
from ocrquant.kernels.operand import Operand
from tests.kernels.producing import BF16, Producer, allocate, every_check, needs_native, randn

EPS = 1e-6


def producer(head):
    return Producer(
        run=lambda i, out: gated_rms_norm(i["o"], i["z"], i["weight"], EPS, out),
        reference=lambda i, out: gated_rms_norm_reference(i["o"], i["z"], i["weight"], EPS, out),
        inputs=lambda rows, width, generator: {
            "o": randn((rows, width), generator),
            "z": randn((rows, width), generator, 2.0),
            "weight": randn((head,), generator).float(),
        },
        shared=("weight",),
        unit=head,
    )


@needs_native
@every_check
@pytest.mark.parametrize("head", [16, 24, 128])
def test_producer(check, head):
    check(producer(head))


def test_reference_is_the_gated_norm_of_hugging_face():
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    generator = torch.Generator().manual_seed(0)
    o, z, weight = (randn(shape, generator) for shape in ((50, 128), (50, 128), (32,)))
    module = qwen.Qwen3_5RMSNormGated(32, eps=EPS).to(BF16)
    out = torch.empty_like(o)
    gated_rms_norm_reference(o, z, weight.float(), EPS, Operand(plain=out))
    with torch.no_grad():
        module.weight.copy_(weight)
        expected = module(o.reshape(-1, 32), z.reshape(-1, 32)).reshape(50, 128)
    assert torch.equal(out, expected)
    # Kernels that stay in float32 up to one cast define something else, and this test tells them apart.
    wide = o.float().unflatten(-1, (-1, 32))
    once = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.float()
    assert not torch.equal((once.flatten(1) * F.silu(z.float())).to(BF16), expected)


def test_heads_do_not_mix():
    o = torch.tensor([[1.0, 1.0, 100.0, 100.0]], dtype=BF16)
    z = torch.full((1, 4), 50.0, dtype=BF16)
    out = torch.empty_like(o)
    gated_rms_norm(o, z, torch.tensor([1.0, 2.0]), 0.0, Operand(plain=out))
    assert out.tolist() == [[50.0, 100.0, 50.0, 100.0]]


def test_refuses_what_its_contract_excludes():
    o, weight = torch.zeros(2, 32, dtype=BF16), torch.ones(12)
    with pytest.raises(ShapeError, match=r"op gated_rms_norm: o: expected a width .* V = 12, got 32"):
        gated_rms_norm(o, o, weight, EPS, allocate(2, 32))
    with pytest.raises(ShapeError, match=r"op gated_rms_norm: z: expected .* w = 32, got \[2, 16\]"):
        gated_rms_norm(o, o[:, :16], torch.ones(16), EPS, allocate(2, 32))
