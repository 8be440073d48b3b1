"""What both towers share: a pre-norm transformer over packed patches, each frame attending to itself only.

Knows patch embedding, learned positions, blocks of attention and MLP, and the two linears behind them that
make tokens. Does not know names of tensors, nor where patches of a token lie. Computes in memory that it is
given, so that a pass may be recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ocrquant.kernels.add import add
from ocrquant.kernels.embed import embed
from ocrquant.kernels.gelu import gelu
from ocrquant.kernels.layer_norm import layer_norm
from ocrquant.kernels.linear import linear, pack
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.packed_attention import packed_attention
from ocrquant.kernels.vision_rope import vision_rope
from ocrquant.models.vision.tables import BatchTables

__all__ = ["Affine", "Block", "Encoder", "GeluForm", "Merger", "Norm", "Scratch"]

GeluForm = Literal["tanh", "erf"]


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm: float32 weight and bias [width]."""

    weight: Tensor
    bias: Tensor
    eps: float

    @property
    def num_bytes(self) -> int:
        """Bytes of weight and bias."""
        return self.weight.nbytes + self.bias.nbytes

    def __call__(self, x: Tensor, out: Tensor) -> Tensor:
        """Normalizes rows [R, width] of ``x`` into ``out``."""
        layer_norm(x, self.weight, self.bias, self.eps, out)
        return out


class Affine:
    """A linear with a bias, its weight packed.

    Args:
        weight: [out, in].
        bias: [out].
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight = pack(weight, weight.device)
        self.bias = bias

    @property
    def in_features(self) -> int:
        """Width of the rows that it reads."""
        return self.weight.in_features

    @property
    def out_features(self) -> int:
        """Width of the rows that it writes."""
        return self.weight.out_features

    @property
    def num_bytes(self) -> int:
        """Bytes of weight and bias."""
        return self.weight.nbytes + self.bias.nbytes

    def __call__(self, x: Tensor, out: Tensor) -> Tensor:
        """Rows [R, in] to ``out`` [R, out]."""
        linear(Operand(plain=x), self.weight, out, self.bias)
        return out


@dataclass(frozen=True, slots=True)
class Block:
    """Attention and MLP, each behind its norm and added to what it read.

    Attributes:
        norm1: Before attention.
        qkv: All queries, then all keys, then all values; each head by head.
        proj: Behind attention.
        norm2: Before the MLP.
        fc1: Its first linear.
        fc2: Its second.
    """

    norm1: Norm
    qkv: Affine
    proj: Affine
    norm2: Norm
    fc1: Affine
    fc2: Affine

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        parts = (self.norm1, self.qkv, self.proj, self.norm2, self.fc1, self.fc2)
        return sum(part.num_bytes for part in parts)


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """Memory of one pass over R patches.

    Attributes:
        x: [R, width], what the blocks add to.
        normed: [R, width].
        attended: [R, width].
        qkv: [R, 3 width].
        hidden: [R, width inside the MLPs].
        merged: [R / merge_size ** 2, width inside the merger].
        tokens: [R / merge_size ** 2, width of the decoder], the result.
    """

    x: Tensor
    normed: Tensor
    attended: Tensor
    qkv: Tensor
    hidden: Tensor
    merged: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class Merger:
    """Patches to tokens: norm of each patch, the patches of a token side by side, two linears.

    Attributes:
        norm: Of a patch.
        fc1: Reads the patches of a token.
        fc2: Writes the width of the decoder.
    """

    norm: Norm
    fc1: Affine
    fc2: Affine

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        return self.norm.num_bytes + self.fc1.num_bytes + self.fc2.num_bytes

    def __call__(self, scratch: Scratch, order: Tensor | None) -> Tensor:
        """Patches [R, width] to tokens [R / merge_size ** 2, hidden].

        Args:
            scratch: With the patches in ``x``.
            order: int32 [R], which patch comes next when those of a token are to lie together; None where
                they lie so.

        Returns:
            ``tokens`` of the scratch.
        """
        rows = self.norm(scratch.x, scratch.normed)
        if order is not None:
            embed(rows, order, scratch.attended)
            rows = scratch.attended
        self.fc1(rows.view(-1, self.fc1.in_features), scratch.merged)
        gelu(scratch.merged, scratch.merged, "erf")
        return self.fc2(scratch.merged, scratch.tokens)


@dataclass(frozen=True, slots=True)
class Encoder:
    """The tower up to its last block.

    Attributes:
        patch_embedding: Reads a patch, channels first, then frames, rows and columns.
        blocks: In order.
        heads: Of attention.
        act: GELU of the MLPs.
    """

    patch_embedding: Affine
    blocks: Sequence[Block]
    heads: int
    act: GeluForm

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        return self.patch_embedding.num_bytes + sum(block.num_bytes for block in self.blocks)

    def __call__(self, pixels: Tensor, tables: BatchTables, scratch: Scratch) -> Tensor:
        """All patches of a batch [R, values of a patch] to ``x`` of the scratch, [R, width]."""
        x, normed, attended, hidden = scratch.x, scratch.normed, scratch.attended, scratch.hidden
        self.patch_embedding(pixels, x)
        add(x, tables.learned, x)
        rows, width = x.shape
        head_dim = width // self.heads
        q, k, v = scratch.qkv.view(rows, 3, self.heads, head_dim).unbind(1)
        for block in self.blocks:
            block.qkv(block.norm1(x, normed), scratch.qkv)
            vision_rope(q, k, tables.cos, tables.sin)
            packed_attention(q, k, v, tables.starts, head_dim**-0.5, attended)
            add(x, block.proj(attended, normed), x)
            block.fc1(block.norm2(x, normed), hidden)
            gelu(hidden, hidden, self.act)
            add(x, block.fc2(hidden, normed), x)
        return x
