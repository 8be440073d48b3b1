"""Measured KL: what the output distribution loses when one group alone is quantized.

Knows candidates and traces. Everything but the candidate stays as it was in the trace, so the divergence of a
group that is left alone is exactly zero.
"""

from __future__ import annotations

import torch

from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.sensitivity.candidates import Candidate, RoundedCandidates
from ocrquant.sensitivity.replay import Trace
from ocrquant.simulate import apply_plan

__all__ = ["divergence"]


@torch.no_grad()
def divergence(trace: Trace, candidate: Candidate, rounded: RoundedCandidates) -> list[float]:
    """KL(unquantized || quantized) in nats, summed over the judged positions of each page.

    Weights and activations of the group are quantized at all positions, those of image and prompt too, as a
    server would; only predictions of answer tokens are judged.

    Args:
        trace: The batch, seen by the unquantized model.
        candidate: What to quantize.
        rounded: Its weights.
    """
    with apply_plan(trace.document.model, rounded.linears(candidate)):
        pairs = zip(trace.reference(), trace.logits_from(candidate.block), strict=True)
        by_position = torch.cat([kl_from_logits(reference, logits) for reference, logits in pairs])
    return trace.sum_by_page(by_position)
