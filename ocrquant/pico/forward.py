"""Pico's forward pass for training, written for throughput on the parameters of the Hugging Face modules.

Knows the mathematics of `Qwen3_5ForConditionalGeneration` (a test holds the two equal in fp32) and that rows
are padded on the right, which lets the decoder run without masks; knows nothing of data or optimisers. What
it does differently: grey patches (the kernel summed over colour and time), one padded tensor for all images,
and the kernels of this package for the delta rule and for everything elementwise around it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3_5ForConditionalGeneration

from ocrquant.kernels.decoder_elementwise import gated_norm, short_conv, swiglu, unit_norm
from ocrquant.kernels.gated_delta import gated_delta_rule
from ocrquant.pico.batches import Batch

MASKED = -30_000.0


def zero_centred_norm(x: Tensor, norm: Any) -> Tensor:
    """`Qwen3_5RMSNorm` on its module."""
    return unit_norm(x, norm.weight, norm.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first cos.shape[-1] dims of x [B, H, T, D]; cos, sin [B, 1, T, R]."""
    size = cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scaling: float) -> Tensor:
    """Softmax attention written out; q, k, v [B, H, T, D], bias broadcast to [B, H, T, T].

    For crops of 80 patches in bf16 this takes a quarter of the time of `scaled_dot_product_attention` forward
    and backward (one Xeon core with AVX-512 BF16, 2026-11-30: 36 ms against 132 ms for 100 x 3 heads).
    """
    return torch.softmax((q * scaling) @ k.mT + bias, dim=-1, dtype=q.dtype) @ v


def gated_delta_net(layer: Any, x: Tensor) -> Tensor:
    """A Gated DeltaNet layer on x [B, T, h] -> [B, T, h]."""
    mixed, z = layer.in_proj_qkv(x), layer.in_proj_z(x)
    beta, a = layer.in_proj_b(x).float().sigmoid(), layer.in_proj_a(x).float()
    kernel = layer.conv1d.weight.squeeze(1).float()
    q, k, v = short_conv(mixed, kernel, layer.num_k_heads, layer.num_v_heads, layer.head_k_dim)
    log_gate = -layer.A_log.float().exp() * F.softplus(a + layer.dt_bias.float())
    out = gated_delta_rule(q, k, v, log_gate, beta)
    normed = gated_norm(out, z, layer.norm.weight.float(), layer.norm.variance_epsilon)
    return cast(Tensor, layer.out_proj(normed))


def full_attention(layer: Any, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A full-attention layer on x [B, T, h].

    Also returns q [B, H, T, D] and k [B, G, T, D] for the place loss.
    """
    batch, length, _ = x.shape
    q, gate = layer.q_proj(x).view(batch, length, -1, 2 * layer.head_dim).chunk(2, dim=-1)
    q = zero_centred_norm(q, layer.q_norm).transpose(1, 2)
    k = zero_centred_norm(layer.k_proj(x).view(batch, length, -1, layer.head_dim), layer.k_norm).transpose(
        1, 2
    )
    v = layer.v_proj(x).view(batch, length, -1, layer.head_dim).transpose(1, 2)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    groups = layer.num_key_value_groups
    k_all, v_all = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    bias = torch.full((length, length), MASKED, dtype=q.dtype, device=q.device).triu(1)
    out = attention(q, k_all, v_all, bias, layer.scaling)
    out = out.transpose(1, 2).reshape(batch, length, -1) * gate.reshape(batch, length, -1).sigmoid()
    return layer.o_proj(out), q, k


def vision_tokens(model: Qwen3_5ForConditionalGeneration, batch: Batch) -> Tensor:
    """Merged vision tokens [B, M, h] of all images of a batch."""
    visual = model.model.visual
    kernel = visual.patch_embed.proj.weight.sum(dim=(1, 2)).flatten(1)
    x = F.linear(batch.patches, kernel, visual.patch_embed.proj.bias)
    table = visual.pos_embed.weight[batch.grid_index]
    x = x + (table * batch.grid_weight.unsqueeze(-1)).sum(2).to(x.dtype)
    frequencies = visual.rotary_pos_emb.inv_freq.float()
    angle = torch.cat(
        [batch.patch_rows[..., None] * frequencies, batch.patch_columns[..., None] * frequencies], -1
    )
    angle = torch.cat([angle, angle], -1).unsqueeze(1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    bias = torch.where(batch.patch_mask, 0.0, MASKED)[:, None, None, :].to(x.dtype)
    size, length = batch.patches.shape[:2]
    for block in visual.blocks:
        heads = block.attn.num_heads
        qkv = block.attn.qkv(block.norm1(x)).view(size, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(qkv[0], cos, sin), rotate(qkv[1], cos, sin)
        out = attention(q, k, qkv[2], bias, block.attn.scaling)
        x = x + block.attn.proj(out.transpose(1, 2).reshape(size, length, -1))
        x = x + block.mlp.linear_fc2(F.gelu(block.mlp.linear_fc1(block.norm2(x))))
    merger = visual.merger
    x = merger.norm(x).view(size, length // 4, -1)
    return cast(Tensor, merger.linear_fc2(merger.act_fn(merger.linear_fc1(x))))


def decode(
    model: Qwen3_5ForConditionalGeneration, batch: Batch, image_tokens: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Last hidden states [B, T, h] after the final norm, and (q, k) of every full-attention layer."""
    text = model.model.language_model
    x = text.embed_tokens(batch.ids).to(image_tokens.dtype)
    size, _, hidden = x.shape
    spread = F.pad(image_tokens, (0, 0, 2, x.shape[1] - 2 - image_tokens.shape[1])) if x.shape[1] >= 2 else x
    x = torch.where(batch.image_slots.unsqueeze(-1), spread.view(size, -1, hidden), x)
    cos, sin = text.rotary_emb(x, batch.positions)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    attended = []
    for layer in text.layers:
        y = zero_centred_norm(x, layer.input_layernorm)
        if layer.block_type == "linear_attention":
            x = x + gated_delta_net(layer.linear_attn, y)
        else:
            out, q, k = full_attention(layer.self_attn, y, cos, sin)
            attended.append((q, k))
            x = x + out
        y = zero_centred_norm(x, layer.post_attention_layernorm)
        x = x + layer.mlp.down_proj(swiglu(layer.mlp.gate_proj(y), layer.mlp.up_proj(y)))
    return zero_centred_norm(x, text.norm), attended
