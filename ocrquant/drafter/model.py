"""A drafter as a torch module: for training, and as the reference of what the engine runs.

DFlash (arXiv 2602.06036): a small decoder without embedding and head. Features of several layers of the
target become keys and values in every draft layer; the block is the last emitted token and masks, embedded by
the target; all its tokens are guessed at once. A token's keys and values always come from what the target
computed, never from the drafter's own states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocrquant.drafter.config import DrafterConfig
from ocrquant.drafter.convolution import AFTER, BEFORE, LocalConvolution
from ocrquant.drafter.selector import CandidateSelector

__all__ = ["Blocks", "DraftModel"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of some sequences to draft, S sequences with A blocks of N tokens each, C tokens of context.

    Attributes:
        context: [S, C, taps * hidden], features of the target, padded on the right.
        anchors: int64 [S, A], place of the last emitted token of each block; its block sees features before
            this place and none else.
        inputs: [S, A, N, hidden], embeddings of the block's tokens: the anchor, then masks.
    """

    context: Tensor
    anchors: Tensor
    inputs: Tensor


class DraftModel(nn.Module):
    """The layers of a drafter.

    Args:
        config: Its sizes.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = _Norm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList(
            _Layer(config, kind == "sliding_attention") for kind in config.layer_types
        )
        self.norm = _Norm(hidden, config.rms_norm_eps)
        self.selector = None
        if config.selector_rank is not None and config.selector_top_k is not None:
            self.selector = CandidateSelector(
                config.vocab_size, hidden, config.selector_rank, config.selector_top_k
            )

    def forward(self, blocks: Blocks) -> Tensor:
        """[S, A, N, hidden], what the head reads; place 0 of a block, the anchor, is not scored."""
        context = self.hidden_norm(self.fc(blocks.context))
        places = _Places.of(blocks, self.config)
        x = blocks.inputs
        for layer in self.layers:
            x = layer(x, context, places)
        normed: Tensor = self.norm(x)
        return normed


@dataclass(frozen=True, slots=True)
class _Places:
    """Rotary tables and who sees whom.

    Attributes:
        context: cos and sin [C, head_dim] of the context.
        block: cos and sin [S, A, N, head_dim] of the blocks.
        full: [S, 1, A * N, C + A * N], 0 where a full layer sees and -inf where not.
        sliding: The same of a sliding layer.
    """

    context: tuple[Tensor, Tensor]
    block: tuple[Tensor, Tensor]
    full: Tensor
    sliding: Tensor

    @classmethod
    def of(cls, blocks: Blocks, config: DrafterConfig) -> _Places:
        count, length = blocks.inputs.shape[2], blocks.context.shape[1]
        device = blocks.context.device
        offsets = torch.arange(count, device=device)
        positions = blocks.anchors.unsqueeze(-1) + offsets
        seen = torch.arange(length, device=device)
        before = seen < blocks.anchors[..., None, None]
        before = before.expand(*positions.shape, length)
        own = torch.ones(count, count, dtype=torch.bool, device=device)
        if config.block_attention == "causal":
            own = own.tril()
        full = _mask(before, own)
        sliding = full
        if config.sliding_window is not None:
            first = blocks.anchors.unsqueeze(-1) if config.window_lower == "anchor" else positions + 1
            inside = seen >= (first - config.sliding_window).unsqueeze(-1)
            sliding = _mask(before & inside, own)
        return cls(_rotary(seen, config), _rotary(positions, config), full, sliding)


def _mask(context: Tensor, own: Tensor) -> Tensor:
    """float32 [S, 1, A * N, C + A * N] of what a block sees, of bool [S, A, N, C] and of its own, [N, N]."""
    blocks = torch.eye(context.shape[1], dtype=torch.bool, device=own.device)
    among = torch.kron(blocks, own).expand(len(context), -1, -1)
    seen = torch.cat([context.flatten(1, 2), among], -1).unsqueeze(1)
    return torch.zeros(seen.shape, device=own.device).masked_fill_(~seen, float("-inf"))


def _rotary(positions: Tensor, config: DrafterConfig) -> tuple[Tensor, Tensor]:
    half = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float64)
    angles = positions.unsqueeze(-1).double() * config.rope_theta ** (-half / config.head_dim)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().float(), angles.sin().float()


def _rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = tables
    return x * cos.to(x.dtype) + torch.cat([-second, first], -1) * sin.to(x.dtype)


class _Norm(nn.RMSNorm):
    """RMSNorm with its weight in the type of what it norms, which torch has a fused kernel for."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class _Attention(nn.Module):
    """Attention of blocks over context and themselves."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.head_dim
        self.num_heads, self.num_kv, self.width = (
            config.num_attention_heads,
            config.num_key_value_heads,
            width,
        )
        self.q_proj = nn.Linear(hidden, self.num_heads * width, bias=False)
        self.k_proj = nn.Linear(hidden, self.num_kv * width, bias=False)
        self.v_proj = nn.Linear(hidden, self.num_kv * width, bias=False)
        self.o_proj = nn.Linear(self.num_heads * width, hidden, bias=False)
        self.q_norm = _Norm(width, config.rms_norm_eps)
        self.k_norm = _Norm(width, config.rms_norm_eps)

    def forward(self, y: Tensor, context: Tensor, places: _Places, visible: Tensor) -> Tensor:
        """[S, A, N, hidden] of blocks y [S, A, N, hidden] over context [S, C, hidden]."""
        _, blocks, count, _ = y.shape
        q = _heads(self.q_norm, self.q_proj(y), self.width, _spread(places.block))
        k = _heads(self.k_norm, self.k_proj(y), self.width, _spread(places.block))
        v = self.v_proj(y).unflatten(-1, (self.num_kv, self.width)).transpose(-2, -3)
        past_k = _heads(self.k_norm, self.k_proj(context), self.width, places.context)
        past_v = self.v_proj(context).unflatten(-1, (self.num_kv, self.width)).transpose(-2, -3)
        # All blocks of a sequence as one row of queries and, behind the context, one row of keys.
        keys = torch.cat([past_k, k.transpose(1, 2).flatten(2, 3)], 2)
        values = torch.cat([past_v, v.transpose(1, 2).flatten(2, 3)], 2)
        share = self.num_heads // self.num_kv
        keys, values = (x.repeat_interleave(share, 1) for x in (keys, values))
        rows = q.transpose(1, 2).flatten(2, 3)  # [S, heads, A * N, d]
        out = F.scaled_dot_product_attention(rows, keys, values, visible.to(rows.dtype))
        merged = out.transpose(1, 2).flatten(2).unflatten(1, (blocks, count))
        projected: Tensor = self.o_proj(merged)
        return projected


def _spread(tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    cos, sin = tables
    return cos.unsqueeze(-3), sin.unsqueeze(-3)


def _heads(norm: nn.Module, x: Tensor, width: int, tables: tuple[Tensor, Tensor]) -> Tensor:
    """[..., heads, tokens, width], normed and rotated, of x [..., tokens, heads * width]."""
    return _rotate(norm(x.unflatten(-1, (-1, width))).transpose(-2, -3), tables)


class _Mlp(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    """Attention and MLP, each between the two sides of a local convolution where the drafter has them."""

    def __init__(self, config: DrafterConfig, is_sliding: bool) -> None:
        super().__init__()
        self._is_sliding = is_sliding
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = _Norm(hidden, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _Norm(hidden, eps)
        self.mlp = _Mlp(config)
        self.attention_conv: LocalConvolution | None = None
        self.mlp_conv: LocalConvolution | None = None
        if config.conv_kernel_size is not None and config.conv_group_size is not None:
            sizes = (hidden, config.conv_kernel_size, config.conv_group_size)
            self.attention_conv, self.mlp_conv = LocalConvolution(*sizes), LocalConvolution(*sizes)

    def forward(self, x: Tensor, context: Tensor, places: _Places) -> Tensor:
        visible = places.sliding if self._is_sliding else places.full

        def attend(y: Tensor) -> Tensor:
            found: Tensor = self.self_attn(y, context, places, visible)
            return found

        x = x + _between(self.attention_conv, self.input_layernorm(x), attend)
        return x + _between(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)


def _between(convolution: LocalConvolution | None, z: Tensor, sublayer: object) -> Tensor:
    assert callable(sublayer)
    if convolution is None:
        plain: Tensor = sublayer(z)
        return plain
    kernels = convolution.kernels(z)
    return convolution.convolve(sublayer(convolution.convolve(z, kernels, BEFORE)), kernels, AFTER)
