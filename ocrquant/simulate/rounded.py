"""From the rounding stage's file to a simulation: what was rounded is what is scored and what is written.

Knows the artefact of that stage. Does not know how a plan was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ocrquant.artifacts import RoundedWeights, Rounding
from ocrquant.formats import Precision
from ocrquant.simulate.linear import SimulatedLinear
from ocrquant.simulate.plan import Smoothing

__all__ = ["rounded_linears", "rounded_smoothing"]


def rounded_linears(
    rounding: Rounding,
    weights: RoundedWeights,
    groups: Mapping[str, Precision],
    *,
    device: torch.device | str | None = None,
) -> dict[str, SimulatedLinear]:
    """Quantized linears of a plan by name, for ``apply_plan``.

    Args:
        rounding: The artefact.
        weights: Its tensors, open.
        groups: Precision by group; groups in bf16 add nothing.
        device: Where to compute.

    Raises:
        ArtifactError: A group was not rounded to its precision.
    """
    linears = {}
    for group, precision in groups.items():
        if precision is Precision.BF16:
            continue
        scale = weights.input_encode_scale(group) if precision is Precision.NVFP4 else None
        for name in rounding.group(group, precision).linears:
            linears[name] = SimulatedLinear.of(weights.weight(name, precision), scale, device=device)
    return linears


def rounded_smoothing(weights: RoundedWeights) -> Smoothing:
    """The smoothing that the rounded weights contain; applied under every plan that quantizes anything."""
    norms = {norm: weights.norm_weight(norm) for norm in weights.smoothed_norms()}
    columns = {name: weights.smoothing(name) for name in weights.smoothed_linears()}
    present = {name: tensor for name, tensor in norms.items() if tensor is not None}
    return Smoothing(
        norms=present,
        columns={name: tensor for name, tensor in columns.items() if tensor is not None},
        dtype=next((tensor.dtype for tensor in present.values()), None),
    )
