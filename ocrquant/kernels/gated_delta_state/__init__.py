"""The gated delta rule (arXiv 2412.06464) carried on from a state, in place, without gradients.

`gated_delta_state` picks the compiled CPU kernel where it applies and the reference elsewhere; `supported`
says which.
"""

from __future__ import annotations

from ocrquant.kernels.gated_delta_state.cpu import gated_delta_state, supported
from ocrquant.kernels.gated_delta_state.reference import EPSILON

__all__ = ["EPSILON", "gated_delta_state", "supported"]
