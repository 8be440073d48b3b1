"""What lies between the matrix products of a Gated DeltaNet decoder, differentiable."""

from __future__ import annotations

from ocrquant.kernels.decoder_elementwise.cpu import gated_norm, short_conv, swiglu, unit_norm

__all__ = ["gated_norm", "short_conv", "swiglu", "unit_norm"]
