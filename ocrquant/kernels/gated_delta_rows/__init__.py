"""The gated delta rule (arXiv 2412.06464) over the rows of many requests at once, states in a pool of slots.

`gated_delta_rows` is the operation for prefill and decode alike: token by token, so that a result depends
neither on how a prompt is cut into chunks nor on what else is in the batch. For teacher-forced batches of
equal length see `gated_delta_state`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_delta_rows.checks import check_native, check_rows
from ocrquant.kernels.gated_delta_rows.native import gated_delta_rows_native
from ocrquant.kernels.gated_delta_rows.reference import EPSILON, gated_delta_rows_reference
from ocrquant.kernels.selection import implementation

__all__ = ["EPSILON", "gated_delta_rows"]


def gated_delta_rows(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    q_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """See `gated_delta_rows_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("gated_delta_rows")
    check_rows(contract, mixed, a, b, a_log, dt_bias, state, q_start, slots, out, key_heads)
    contract.tensor("fresh", fresh, "N", torch.int32)
    run = implementation("gated_delta_rows", mixed, gated_delta_rows_native, gated_delta_rows_reference)
    if run is not gated_delta_rows_reference:
        check_native(contract, state, a_log, dt_bias)
    run(mixed, a, b, a_log, dt_bias, state, q_start, slots, fresh, out, key_heads)
