"""The gated delta rule (arXiv 2412.06464) over the rows of many requests at once, states in a pool of slots.

`gated_delta_rows` is the operation for prefill and decode alike: token by token, so that a result depends
neither on how a prompt is cut into chunks nor on what else is in the batch. For teacher-forced batches of
equal length see `gated_delta_state`.

Where ``OCRQUANT_LIBRARIES`` asks for ``fla``, a long part of one prompt on a GPU is computed in chunks by
flash-linear-attention instead (`chunked`), which gives that promise up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_delta_rows.checks import check_native, check_rows
from ocrquant.kernels.gated_delta_rows.chunked import chunk_obstacle, gated_delta_rows_chunked
from ocrquant.kernels.gated_delta_rows.native import gated_delta_rows_native
from ocrquant.kernels.gated_delta_rows.reference import EPSILON, gated_delta_rows_reference
from ocrquant.kernels.selection import implementation, note_choice

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
    span: slice | None = None,
) -> None:
    """See `gated_delta_rows_reference`.

    `span` goes from the first row of the requests to behind the last, where the host knows them; ``q_start``
    is not read back.

    Raises:
        ShapeError: An argument is not as the reference says.
        DeviceError: ``OCRQUANT_LIBRARIES`` asks for a library that cannot be used.
    """
    contract = Contract("gated_delta_rows")
    check_rows(contract, mixed, a, b, a_log, dt_bias, state, q_start, slots, out, key_heads)
    contract.tensor("fresh", fresh, "N", torch.int32)
    if span is not None and not chunk_obstacle(mixed, state, slots, span):
        note_choice("gated_delta_rows", "fla", "OCRQUANT_LIBRARIES names fla; a long part of one prompt")
        gated_delta_rows_chunked(mixed, a, b, a_log, dt_bias, state, slots, fresh, out, key_heads, span)
        return
    run = implementation("gated_delta_rows", mixed, gated_delta_rows_native, gated_delta_rows_reference)
    if run is not gated_delta_rows_reference:
        check_native(contract, state, a_log, dt_bias)
    run(mixed, a, b, a_log, dt_bias, state, q_start, slots, fresh, out, key_heads)
