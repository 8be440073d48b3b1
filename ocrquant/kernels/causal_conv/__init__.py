"""The short causal convolution in front of a gated delta rule, over the rows of many requests at once.

`causal_conv` is the operation; each request's last inputs live in a pool of slots. Knows nothing of layers,
windows of drafts or schedulers.
"""

from __future__ import annotations

from ocrquant.kernels.causal_conv.reference import TAPS
from ocrquant.kernels.causal_conv.reference import causal_conv_reference as causal_conv

__all__ = ["TAPS", "causal_conv"]
