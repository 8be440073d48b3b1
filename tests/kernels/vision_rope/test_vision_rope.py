"""Rotary embedding of the vision towers against transformers, bit for bit, in place on views."""

from __future__ import annotations

import pytest
import torch
from transformers.models.paddleocr_vl import modeling_paddleocr_vl
from transformers.models.qwen3_5 import modeling_qwen3_5

from ocrquant.kernels.extension import extension
from ocrquant.kernels.vision_rope import vision_rope
from ocrquant.kernels.vision_rope.reference import vision_rope_reference

ROWS, HEADS = 37, 3


def inputs(head_dim: int, dtype: torch.dtype = torch.bfloat16):
    torch.manual_seed(head_dim)
    qkv = torch.randn(ROWS, 3, HEADS, head_dim).to(dtype)
    angle = torch.randn(ROWS, head_dim // 2) * 30
    return qkv, angle.cos(), angle.sin()


@pytest.mark.parametrize("op", [vision_rope, vision_rope_reference])
@pytest.mark.parametrize("module", [modeling_qwen3_5, modeling_paddleocr_vl])
@pytest.mark.parametrize("head_dim", [48, 64, 72, 80, 128])
def test_has_the_bits_of_transformers(op, module, head_dim) -> None:
    qkv, cos, sin = inputs(head_dim)
    wide_cos, wide_sin = (torch.cat((x, x), dim=-1) for x in (cos, sin))
    wanted = module.apply_rotary_pos_emb_vision(qkv[:, 0], qkv[:, 1], wide_cos, wide_sin)
    values = qkv[:, 2].clone()
    op(qkv[:, 0], qkv[:, 1], cos, sin)
    assert torch.equal(qkv[:, 0], wanted[0])
    assert torch.equal(qkv[:, 1], wanted[1])
    assert torch.equal(qkv[:, 2], values)


def test_keeps_float64() -> None:
    qkv, cos, sin = inputs(64, torch.float64)
    before = qkv[:, 0].clone()
    vision_rope(qkv[:, 0], qkv[:, 1], cos, sin)
    # A rotation keeps lengths, up to that of the float32 table.
    assert torch.allclose(before.norm(dim=-1), qkv[:, 0].norm(dim=-1), rtol=1e-6)


@pytest.mark.parametrize("head_dim", [48, 64, 72, 128])
def test_the_plain_build_has_the_same_bits(head_dim) -> None:
    (best, cos, sin), (plain, _, _) = inputs(head_dim), inputs(head_dim)
    for qkv in (best, plain):
        qkv[3] *= 1e-39  # subnormal
        qkv[5, :, 1, 7] = torch.nan
    vision_rope(best[:, 0], best[:, 1], cos, sin)
    extension().force_isa("plain")
    try:
        vision_rope(plain[:, 0], plain[:, 1], cos, sin)
    finally:
        extension().force_isa("auto")
    assert torch.equal(best.view(torch.int16), plain.view(torch.int16))
