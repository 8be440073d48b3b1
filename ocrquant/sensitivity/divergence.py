"""Measured KL: what the output distribution loses when something is quantized and all else stays as it was.

The sweep goes through the blocks once for many changes, so that a block whose weights are read from the disk
is read once: each change begins at its first block, from the input that the trace holds, and is carried along
from there on. The divergence of a change of nothing is exactly zero. Knows changes and traces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.sensitivity.candidates import Change, RoundedCandidates
from ocrquant.sensitivity.replay import HiddenStates, Trace

__all__ = ["divergences"]


@torch.no_grad()
def divergences(
    trace: Trace, changes: Sequence[Change], rounded: RoundedCandidates, carried: HiddenStates
) -> list[list[float]]:
    """KL(unquantized || changed) in nats, summed over the judged positions of each page, for each change.

    Weights and activations are quantized at all positions, those of image and prompt too, as a server would;
    only predictions of answer tokens are judged.

    Args:
        trace: The batch, seen by the unquantized model.
        changes: What to quantize, one after the other.
        rounded: The weights.
        carried: Where to keep the hidden states of the changes between two blocks.

    Raises:
        ArtifactError: A group was not rounded to its format.
        OutputError: The disk is full.
    """
    parts = [rounded.by_block(change) for change in changes]
    first = [_start(trace, min(blocks, default=trace.num_blocks)) for blocks in parts]
    for block in range(min(first, default=0), trace.num_blocks):
        with trace.document.resident_block(block):
            for number, blocks in enumerate(parts):
                if first[number] > block:
                    continue
                hidden = trace.hidden.get(block) if first[number] == block else carried.get(number)
                with rounded.applied(block, blocks.get(block)):
                    carried.put(number, trace.run_block(block, hidden))
    found = []
    for number, blocks in enumerate(parts):
        if not blocks:
            found.append([0.0] * len(trace.num_tokens))
            continue
        is_carried = first[number] < trace.num_blocks
        hidden = carried.get(number) if is_carried else trace.hidden.get(trace.num_blocks)
        carried.drop(number)
        with rounded.applied(trace.num_blocks, blocks.get(trace.num_blocks)):
            found.append(_divergence(trace, hidden))
    return found


def _start(trace: Trace, block: int) -> int:
    """The last block up to the given one whose input is known."""
    return max(known for known in trace.inputs if known <= block)


def _divergence(trace: Trace, hidden: Tensor) -> list[float]:
    pairs = zip(trace.reference(), trace.logits_after(hidden), strict=True)
    return trace.sum_by_page(torch.cat([kl_from_logits(reference, logits) for reference, logits in pairs]))
