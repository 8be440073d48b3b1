"""``selector_walk`` in Triton: the best logits of every part of a row, then one walk a block over these."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.triton_common.launch import launch, next_power
from ocrquant.kernels.triton_common.order import LEAST, largest, number, ordered

_MOST_COLUMNS = 4096


@triton.jit
def part_kernel(
    logits, keys, tokens, width, parts, COLUMNS: tl.constexpr, TOP: tl.constexpr, PADDED: tl.constexpr
):
    """Program (row, part of it): its largest logits, NaN as -inf, by falling logit and rising index."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(logits + row * width + at, mask=at < width, other=0.0)
    key = tl.where(at < width, ordered(tl.where(x == x, x, float("-inf"))), LEAST)
    best, chosen = largest(key, at, TOP, PADDED)
    target = (row * parts + part) * TOP + tl.arange(0, PADDED)
    tl.store(keys + target, best, mask=tl.arange(0, PADDED) < TOP)
    tl.store(tokens + target, chosen, mask=tl.arange(0, PADDED) < TOP)


@triton.jit
def walk_kernel(
    keys,
    tokens,
    gate,
    gate_stride,
    predecessor,
    successor,
    first_tokens,
    out_tokens,
    out_alone,
    found,
    rank,
    block,
    FOUND: tl.constexpr,
    RANK: tl.constexpr,
    TOP: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Program (block): slot by slot, each given the choice before it."""
    row = tl.program_id(0).to(tl.int64) * block
    previous = tl.load(first_tokens + row)
    tl.store(out_tokens + row, previous)
    tl.store(out_alone + row, previous)
    at, code, slot_rank = tl.arange(0, FOUND), tl.arange(0, RANK), tl.arange(0, PADDED)
    is_code = code < rank
    for slot in range(1, block):
        here = row + slot
        key = tl.load(keys + here * found + at, mask=at < found, other=LEAST)
        best, chosen = largest(
            key, tl.load(tokens + here * found + at, mask=at < found, other=0), TOP, PADDED
        )
        is_candidate = slot_rank < TOP
        before = tl.load(predecessor + previous.to(tl.int64) * rank + code, mask=is_code, other=0.0)
        opened = tl.load(gate + here * gate_stride + code, mask=is_code, other=0.0)
        behind = before.to(tl.float32) * opened.to(tl.float32)
        places = successor + chosen.to(tl.int64)[:, None] * rank + code[None, :]
        after = tl.load(places, mask=is_candidate[:, None] & is_code[None, :], other=0.0).to(tl.float32)
        score = number(best) + tl.sum(after * behind[None, :], axis=1)
        top = tl.max(tl.where(is_candidate, ordered(score), LEAST), axis=0, return_indices=True)
        previous = tl.sum(tl.where(slot_rank == top[1], chosen, 0), axis=0)
        tl.store(out_tokens + here, previous)
        tl.store(out_alone + here, tl.sum(tl.where(slot_rank == 0, chosen, 0), axis=0))


def selector_walk_triton(
    logits: Tensor,
    gate: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    tokens: Tensor,
    block: int,
    top_k: int,
    out_tokens: Tensor,
    out_alone: Tensor,
) -> None:
    """See `selector_walk_reference`; bf16 gates and codebooks on a GPU."""
    rows, width = logits.shape
    columns = min(next_power(width), _MOST_COLUMNS)
    parts, padded = -(-width // columns), next_power(top_k)
    found = parts * top_k
    keys, candidates = (torch.empty(rows, found, dtype=torch.int32, device=logits.device) for _ in range(2))
    launch(
        part_kernel,
        (rows, parts),
        *(logits, keys, candidates, width, parts),
        num_warps=8,
        COLUMNS=columns,
        TOP=top_k,
        PADDED=padded,
    )
    rank = gate.shape[1]
    codes = (gate, gate.stride(0), predecessor, successor, tokens, out_tokens, out_alone)
    launch(
        walk_kernel,
        (rows // block,),
        *(keys, candidates, *codes, found, rank, block),
        num_warps=4,
        FOUND=next_power(found),
        RANK=next_power(rank),
        TOP=top_k,
        PADDED=padded,
    )
