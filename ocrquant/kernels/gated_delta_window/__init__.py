"""The gated delta rule over windows of drafted tokens, keeping the state behind each token.

`gated_delta_window` is the operation. One state for each drafted token is what undoing drafts costs without
records; `replay` keeps records instead.
"""

from __future__ import annotations

from ocrquant.kernels.gated_delta_window.reference import gated_delta_window_reference as gated_delta_window

__all__ = ["gated_delta_window"]
