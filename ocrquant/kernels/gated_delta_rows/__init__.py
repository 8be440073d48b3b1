"""The gated delta rule (arXiv 2412.06464) over the rows of many requests at once, states in a pool of slots.

`gated_delta_rows` is the operation for prefill and decode alike: token by token, so that a result depends
neither on how a prompt is cut into chunks nor on what else is in the batch. For teacher-forced batches of
equal length see `gated_delta_state`.
"""

from __future__ import annotations

from ocrquant.kernels.gated_delta_rows.reference import EPSILON
from ocrquant.kernels.gated_delta_rows.reference import gated_delta_rows_reference as gated_delta_rows

__all__ = ["EPSILON", "gated_delta_rows"]
