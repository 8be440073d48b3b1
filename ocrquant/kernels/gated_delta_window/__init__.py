"""The gated delta rule over windows of drafted tokens, keeping the state behind each token.

`gated_delta_window` is the operation. One state for each drafted token is what undoing drafts costs without
records; `replay` keeps records instead.
"""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_delta_rows.checks import check_native, check_rows
from ocrquant.kernels.gated_delta_window.native import gated_delta_window_native
from ocrquant.kernels.gated_delta_window.reference import gated_delta_window_reference
from ocrquant.kernels.selection import implementation

__all__ = ["gated_delta_window"]


def gated_delta_window(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    states: Tensor,
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """See `gated_delta_window_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("gated_delta_window")
    check_rows(contract, mixed, a, b, a_log, dt_bias, state, q_start, slots, out, key_heads)
    contract.tensor("states", states, "slots T H K V", state.dtype)
    run = implementation("gated_delta_window", mixed, gated_delta_window_native, gated_delta_window_reference)
    if run is not gated_delta_window_reference:
        check_native(contract, state, a_log, dt_bias)
    run(mixed, a, b, a_log, dt_bias, state, states, q_start, slots, out, key_heads)
