"""The gated delta rule over whole sequences (arXiv 2412.06464), differentiable.

`gated_delta_rule` picks the compiled CPU kernel where it applies and the chunked reference elsewhere.
"""

from __future__ import annotations

from ocrquant.kernels.gated_delta.cpu import gated_delta_rule

__all__ = ["gated_delta_rule"]
