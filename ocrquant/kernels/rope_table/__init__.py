"""Cosines and sines of rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import I32, Contract
from ocrquant.kernels.rope_table.native import rope_table_native
from ocrquant.kernels.rope_table.reference import rope_table_reference
from ocrquant.kernels.selection import use_native

__all__ = ["rope_table"]

_WIDE = (torch.float32, torch.float64)


def rope_table(
    positions: Tensor, inv_freq: Tensor, axis: Tensor, out_cos: Tensor, out_sin: Tensor, dtype: torch.dtype
) -> None:
    """See `rope_table_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("rope_table")
    contract.tensor("positions", positions, "axes R", I32, strided=True)
    contract.tensor("inv_freq", inv_freq, "half", torch.float32)
    contract.tensor("axis", axis, "half", I32)
    contract.tensor("out_cos", out_cos, "R half", _WIDE)
    contract.tensor("out_sin", out_sin, "R half", out_cos.dtype)
    kinds = (torch.float32,) if dtype in (torch.bfloat16, torch.float32) else ()
    run = rope_table_native if use_native("rope_table", out_cos, kinds) else rope_table_reference
    run(positions, inv_freq, axis, out_cos, out_sin, dtype)
