"""GPTQ: rounds columns one by one and moves each column's error onto those that are still unrounded.

After Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(arXiv 2210.17323), without reordering: scales are settled before, and NVFP4 blocks lie along the columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.formats import nvfp4
from ocrquant.formats.rounding import Grid, round_to_grid_
from ocrquant.rounding.scales import WeightScales

__all__ = ["DAMPING", "compensated", "inverse_factor"]

DAMPING = 0.01
"""Part of the mean diagonal that is added to the Hessian's diagonal, as in the paper's program."""

# Columns whose errors reach the rest of the weight in one matrix product.
_COLUMNS = 8 * nvfp4.BLOCK_SIZE


@torch.no_grad()
def inverse_factor(hessian: Tensor, damping: float = DAMPING) -> Tensor:
    """Upper Cholesky factor U of the damped inverse: (H + d·I)⁻¹ = Uᵀ U.

    Row c of U, from the diagonal on, is what GPTQ needs of the inverse once the columns before c are settled.

    Args:
        hessian: [in, in], symmetric, positive semidefinite up to rounding, finite; the weighted second
            moment of the input.
        damping: d over the mean of the diagonal. Where the matrix cannot be factored, it grows tenfold until
            it can.

    Returns:
        float32 [in, in]. A dead channel (zero on the diagonal) is decoupled from all others.
    """
    # At a width of 9216 each float64 matrix takes 0.7 GB: three are alive at once, none for the identity.
    matrix = hessian.double()
    is_dead = matrix.diagonal() <= 0
    mean = float(matrix.diagonal().clamp(min=0).mean())
    if mean == 0.0:
        return torch.eye(len(matrix), dtype=torch.float32, device=matrix.device)
    matrix.div_(mean)
    matrix[is_dead], matrix[:, is_dead] = 0.0, 0.0
    matrix.diagonal()[is_dead] = 1.0
    diagonal = matrix.diagonal().clone()
    while True:
        matrix.diagonal().copy_(diagonal + damping)
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            del lower
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            del inverse
            if not failed:
                factor: Tensor = upper.div_(mean**0.5).float()
                return factor
        damping *= 10.0


@torch.no_grad()
def compensated(weight: Tensor, scales: WeightScales, factor: Tensor) -> Tensor:
    """Rounds a weight so that the errors of its columns cancel in the output.

    Args:
        weight: float32 [out, in], finite.
        scales: Settled scales of this weight.
        factor: What ``inverse_factor`` returns for the input of this linear.

    Returns:
        float32 [out, in] on the grid; ``stored`` gives the codes.
    """
    left = weight.clone()
    rounded = torch.empty_like(left)
    for start in range(0, left.shape[1], _COLUMNS):
        columns = slice(start, min(start + _COLUMNS, left.shape[1]))
        errors = _round_columns(
            left[:, columns],
            rounded[:, columns],
            scales.steps(columns),
            scales.grid,
            factor[columns, columns],
        )
        rest = slice(columns.stop, None)
        left[:, rest] -= errors @ factor[columns, rest]
    return rounded


def _round_columns(left: Tensor, rounded: Tensor, steps: Tensor, grid: Grid, factor: Tensor) -> Tensor:
    """Rounds a run of columns into ``rounded``; returns their errors over the diagonal, [out, columns]."""
    # Column by column on the transposed copy: each step then reads and writes contiguous memory.
    left = left.T.contiguous()
    steps = steps.T.contiguous()
    errors = torch.empty_like(left)
    results = torch.empty_like(left)
    diagonal = factor.diagonal().tolist()
    for column in range(len(left)):
        step = steps[column if len(steps) > 1 else 0]
        torch.mul(round_to_grid_(left[column] / step, grid), step, out=results[column])
        torch.sub(left[column], results[column], out=errors[column]).div_(diagonal[column])
        if column + 1 < len(left):
            left[column + 1 :].addr_(factor[column, column + 1 :], errors[column], alpha=-1.0)
    rounded.copy_(results.T)
    return errors.T
