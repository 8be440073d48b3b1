"""Choosing a token from logits: the definition, row by row in float64. Knows numbers, no vocabulary."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ocrquant.kernels.sample.stream import Purpose, uniform


def sample_reference(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    out_tokens: Tensor,
    out_gap: Tensor,
) -> None:
    """Chooses a token for every row.

    At temperature 0 (or below, or NaN) it is the largest logit, the lowest index among equals. Otherwise a
    draw from ``softmax(logits / temperature)`` restricted to its nucleus: the smallest set of tokens, taken
    by falling logit and among equals by rising index, whose probability is at least ``top_p``; never empty,
    and everything unless ``top_p`` < 1. The draw inverts the cumulative sum over the nucleus in index order.

    A NaN logit counts as -inf. A row in which nothing is above -inf gives token 0 with gap 0.

    Args:
        logits: float32 [N, V], rows any stride apart.
        temperature: float32 [N].
        top_p: float32 [N].
        seed: int32 [N, 2].
        position: int32 [N], absolute position of the token to choose; with ``seed`` it fixes the random
            number.
        out_tokens: int32 [N]; overwritten.
        out_gap: float32 [N]; overwritten: largest minus second largest logit (0 where they are equal, inf
            where nothing else is above -inf), by which a choice can be told from noise.
    """
    for i in range(logits.shape[0]):
        row = logits[i].detach().cpu().numpy().astype(np.float64)
        row = np.where(np.isnan(row), -np.inf, row)
        best = int(row.argmax())
        second = np.delete(row, best).max(initial=-np.inf)
        out_gap[i] = 0.0 if row[best] == second else row[best] - second
        heat = float(temperature[i])
        if not heat > 0 or row[best] == -np.inf:
            out_tokens[i] = best
            continue
        words = seed[i].tolist()
        u = uniform((words[0], words[1]), int(position[i]), Purpose.TOKEN)
        out_tokens[i] = _draw(row, heat, float(top_p[i]), u)


def nucleus(
    row: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], top_p: float
) -> npt.NDArray[np.intp]:
    """Indices of the nucleus in rising order; ``weights`` need not sum to 1."""
    if not top_p < 1:
        return np.arange(row.size)
    order = np.lexsort((np.arange(row.size), -row))
    reached = np.cumsum(weights[order]) >= top_p * weights.sum()
    # A sum in another order may fall short of the total by its rounding: then all of it is needed.
    return np.sort(order[: int(reached.argmax()) + 1]) if reached.any() else np.arange(row.size)


def _draw(row: npt.NDArray[np.float64], heat: float, top_p: float, u: float) -> int:
    largest = row.max()
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.where(row == largest, 1.0, np.exp((row - largest) / heat))
    kept = nucleus(row, weights, top_p)
    cumulative = np.cumsum(weights[kept])
    at = np.searchsorted(cumulative, u * cumulative[-1], side="right")
    return int(kept[min(int(at), kept.size - 1)])
