"""``sample`` in Triton: one program a row, which walks through the vocabulary.

Probabilities are float32, their sums float64, so a draw within 1e-6 of the border between two tokens may fall
on the other side than in the definition. A greedy row is read once; a draw reads it twice more, and a nucleus
32 times more, which stay in the cache: a border of the nucleus is searched bit by bit, without sorting.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.sample import stream
from ocrquant.kernels.triton_common.launch import launch, next_power
from ocrquant.kernels.triton_common.order import number, ordered

_MOST_COLUMNS = 4096

ROUNDS = tl.constexpr(stream._ROUNDS)
FIRST_MULTIPLIER = tl.constexpr(stream._MULTIPLIERS[0])
SECOND_MULTIPLIER = tl.constexpr(stream._MULTIPLIERS[1])
FIRST_WEYL = tl.constexpr(stream._WEYL[0])
SECOND_WEYL = tl.constexpr(stream._WEYL[1])
PURPOSE = tl.constexpr(int(stream.Purpose.TOKEN))
KEY_BITS = tl.constexpr(32)
ALL = tl.constexpr(2**31 - 1)


@triton.jit
def uniform(first_seed, second_seed, position, PURPOSE: tl.constexpr):
    """``sample.stream.uniform`` as a float64 scalar, bit for bit."""
    a, b = position.to(tl.uint32, bitcast=True), tl.full([], PURPOSE, tl.uint32)
    c, d = tl.full([], 0, tl.uint32), tl.full([], 0, tl.uint32)
    low, high = first_seed.to(tl.uint32, bitcast=True), second_seed.to(tl.uint32, bitcast=True)
    by, with_ = tl.full([], FIRST_MULTIPLIER, tl.uint32), tl.full([], SECOND_MULTIPLIER, tl.uint32)
    for _ in tl.static_range(ROUNDS):
        above, below = tl.umulhi(a, by), a * by
        other_above, other_below = tl.umulhi(c, with_), c * with_
        a, b, c, d = other_above ^ b ^ low, other_below, above ^ d ^ high, below
        low, high = low + FIRST_WEYL, high + SECOND_WEYL
    whole = (a >> 5).to(tl.float64) * 67108864.0 + (b >> 6).to(tl.float64)
    return whole * (1.0 / 9007199254740992.0)


@triton.jit
def _logits(row, start, width, COLUMNS: tl.constexpr):
    """Some logits; NaN, and what lies beyond the row, as -inf."""
    at = start + tl.arange(0, COLUMNS)
    x = tl.load(row + at, mask=at < width, other=float("-inf"))
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def _peak(row, width, COLUMNS: tl.constexpr):
    """The largest logit, its lowest index, and the second largest."""
    best, second, index = float("-inf"), float("-inf"), 0
    for start in range(0, width, COLUMNS):
        x = _logits(row, start, width, COLUMNS)
        top, at = tl.max(x, axis=0, return_indices=True)
        other = tl.max(tl.where(tl.arange(0, COLUMNS) == at, float("-inf"), x), axis=0)
        is_better = top > best
        second = tl.where(is_better, tl.maximum(best, other), tl.maximum(second, top))
        index = tl.where(is_better, start + at, index)
        best = tl.where(is_better, top, best)
    return best, second, index


@triton.jit
def _weights(x, best, heat):
    """Probabilities up to a factor; all that is as large as the largest has 1, infinity too."""
    return tl.where(x == best, 1.0, tl.exp(tl.div_rn(x - best, heat)))


@triton.jit
def _weight_from(row, width, best, heat, least, COLUMNS: tl.constexpr):
    """Sum of the weights whose key is at least `least`, float64."""
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, width, COLUMNS):
        x = _logits(row, start, width, COLUMNS)
        weight = tl.where(ordered(x) >= least, _weights(x, best, heat), 0.0)
        total += tl.sum(weight.to(tl.float64), axis=0)
    return total


@triton.jit
def _nucleus(row, width, best, heat, target, COLUMNS: tl.constexpr):
    """Where a nucleus ends.

    Returns:
        The key of its smallest logits, how many of these belong to it, and the weight of the larger ones.
    """
    low, high = ordered(tl.full([], float("-inf"), tl.float32)).to(tl.int64), ordered(best).to(tl.int64)
    for _ in range(KEY_BITS):
        middle = low + (high - low + 1) // 2
        is_enough = _weight_from(row, width, best, heat, middle, COLUMNS) >= target
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle - 1)
    above = _weight_from(row, width, best, heat, low + 1, COLUMNS)
    weight = _weights(number(low), best, heat).to(tl.float64)
    count = tl.ceil((target - above) / tl.where(weight > 0, weight, 1.0))
    # Where a weight is zero, or the sum of all fell short of the target by its rounding, all belong to it.
    is_all = (weight <= 0) | (count > ALL)
    return low, tl.where(is_all, ALL, tl.maximum(count, 1.0).to(tl.int64)), above


@triton.jit
def _draw(row, width, best, heat, least, count, goal, COLUMNS: tl.constexpr):
    """The first token of the nucleus whose cumulative weight passes the goal; its last one if none does."""
    passed, equals = tl.full([], 0.0, tl.float64), tl.full([], 0, tl.int64)
    found, last = ALL, 0
    for start in range(0, width, COLUMNS):
        x = _logits(row, start, width, COLUMNS)
        key, at = ordered(x), start + tl.arange(0, COLUMNS)
        is_equal = (key == least) & (at < width)
        rank = equals + tl.cumsum(is_equal.to(tl.int64), axis=0)
        is_kept = ((key > least) | (is_equal & (rank <= count))) & (at < width)
        weight = tl.where(is_kept, _weights(x, best, heat), 0.0).to(tl.float64)
        is_hit = is_kept & (passed + tl.cumsum(weight, axis=0) > goal)
        found = tl.minimum(found, tl.min(tl.where(is_hit, at, ALL), axis=0))
        last = tl.maximum(last, tl.max(tl.where(is_kept, at, 0), axis=0))
        passed += tl.sum(weight, axis=0)
        equals += tl.sum(is_equal.to(tl.int64), axis=0)
    return tl.where(found == ALL, last, found)


@triton.jit
def _kept(row, width, best, heat, least, count, above, COLUMNS: tl.constexpr):
    """Weight of a nucleus: what lies above its smallest logits, and those of these that belong to it."""
    both = _weight_from(row, width, best, heat, least, COLUMNS)
    each = _weights(number(least), best, heat).to(tl.float64)
    return tl.minimum(both, above + count.to(tl.float64) * each)


@triton.jit
def sample_kernel(
    logits,
    stride,
    temperature,
    top_p,
    seed,
    position,
    out_tokens,
    out_gap,
    width,
    COLUMNS: tl.constexpr,
):
    """Program (row)."""
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * stride
    best, second, token = _peak(row, width, COLUMNS)
    tl.store(out_gap + index, tl.where(best == second, 0.0, best - second))
    heat = tl.load(temperature + index)
    if heat > 0.0:
        if best > float("-inf"):
            limit = tl.load(top_p + index)
            least = ordered(tl.full([], float("-inf"), tl.float32)).to(tl.int64)
            kept = _weight_from(row, width, best, heat, least, COLUMNS)
            count, above = tl.full([], ALL, tl.int64), kept
            if limit < 1.0:
                least, count, above = _nucleus(row, width, best, heat, limit.to(tl.float64) * kept, COLUMNS)
                kept = _kept(row, width, best, heat, least, count, above, COLUMNS)
            u = uniform(
                tl.load(seed + 2 * index), tl.load(seed + 2 * index + 1), tl.load(position + index), PURPOSE
            )
            token = _draw(row, width, best, heat, least, count, u * kept, COLUMNS)
    tl.store(out_tokens + index, token)


def sample_triton(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    out_tokens: Tensor,
    out_gap: Tensor,
) -> None:
    """See `sample_reference`; on a GPU."""
    rows, width = logits.shape
    launch(
        sample_kernel,
        (rows,),
        *(logits, logits.stride(0), temperature, top_p, seed, position, out_tokens, out_gap, width),
        num_warps=8,
        COLUMNS=min(next_power(width), _MOST_COLUMNS),
    )
