"""How the linears that read one tensor meet their grids, and which steps earn their place.

Every step beyond rounding to nearest is tried and kept only where it lowers the output error on rows that
nothing was fitted on. Knows matrices and samples of activations; knows no model and no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Literal

import torch
from torch import Tensor

from ocrquant.formats import Precision, nvfp4
from ocrquant.formats.weights import QuantizedWeight
from ocrquant.rounding.gptq import compensated, inverse_factor
from ocrquant.rounding.objective import Judge, Rows
from ocrquant.rounding.scales import WeightScales, nearest_scales, searched_scales, stored
from ocrquant.rounding.smoothing import candidates, column_magnitude, fold_norm

__all__ = [
    "LayerInput",
    "Methods",
    "Norm",
    "RoundedGroup",
    "RoundedLayer",
    "Smoothing",
    "Step",
    "round_layer",
    "round_to_nearest",
]

# Folding rounds norm and bf16 readers once more, so a gain within the noise of the sample is not worth it.
_SMOOTHING_GAIN = 0.01
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class Methods:
    """Steps to try beyond rounding to nearest."""

    smoothing: bool
    scale_search: bool
    gptq: bool


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What is known of the tensor that some linears read.

    Attributes:
        channel_amax: float32 [in], largest |x| of each channel.
        hessian: float32 [in, in], weighted sum of x xᵀ over the rows to fit on.
        fit: Sample of those rows.
        held_back: Sample of rows that steps are judged on, of other pages.
    """

    channel_amax: Tensor
    hessian: Tensor
    fit: Rows
    held_back: Rows

    def divided(self, smoothing: Tensor) -> LayerInput:
        """The input of the smoothed model; ``smoothing`` is float32 [in]."""
        return LayerInput(
            self.channel_amax / smoothing,
            self.hessian / torch.outer(smoothing, smoothing),
            self.fit.divided(smoothing),
            self.held_back.divided(smoothing),
        )

    @property
    def encode_scale(self) -> Tensor:
        """NVFP4 global scale of the activations, float32 [1]."""
        return nvfp4.exchangeable_scale(nvfp4.global_encode_scale(self.channel_amax.amax()))


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm that makes the tensor: its weight [in] in the model's dtype, and whether it multiplies by 1 + w.

    Attributes:
        weight: [in].
        offset: Whether the multiplier is 1 + w instead of w.
    """

    weight: Tensor
    offset: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was tried: errors on held-back rows without and with it, and whether it was kept."""

    name: Literal["smoothing", "scale_search", "gptq"]
    accepted: bool
    error_before: float
    error_after: float


@dataclass(frozen=True, slots=True)
class RoundedGroup:
    """Linears of one group in one format.

    Attributes:
        weights: Stored form, in the order of the linears.
        steps: What was tried.
        error: Error of these weights on held-back rows; None where nothing was measured.
    """

    weights: list[QuantizedWeight]
    steps: list[Step]
    error: float | None


@dataclass(frozen=True, slots=True)
class Smoothing:
    """A smoothing that was kept.

    Attributes:
        vector: float32 [in]: the tensor is divided by it, columns of readers are multiplied.
        norm_weight: The norm's new weight in the model's dtype.
    """

    vector: Tensor
    norm_weight: Tensor


@dataclass(frozen=True, slots=True)
class RoundedLayer:
    """Everything that reads one tensor.

    Attributes:
        groups: Name of the group and format -> its weights, smoothing included.
        smoothing: The smoothing that these weights expect; None for none.
        exponent: Exponent of the best candidate; 0 where none promised anything.
        channel_amax: float32 [in], of the tensor after smoothing.
    """

    groups: dict[tuple[str, Precision], RoundedGroup]
    smoothing: Smoothing | None
    exponent: float
    channel_amax: Tensor


Weights = Mapping[str, Sequence[Tensor]]
Formats = Mapping[str, Sequence[Precision]]


def round_to_nearest(weights: Sequence[Tensor], precision: Precision) -> RoundedGroup:
    """Rounds the linears of a group to nearest, with no look at activations.

    Args:
        weights: [out, in] each, any float dtype, finite.
        precision: FP8 or NVFP4.

    Raises:
        WeightValueError: A weight holds NaN or Inf.
        ShapeError: A width does not suit the format.
    """
    scales = nearest_scales(weights, precision)
    return RoundedGroup([stored(w, s) for w, s in zip(weights, scales, strict=True)], [], None)


def round_layer(
    weights: Weights,
    formats: Formats,
    layer_input: LayerInput,
    methods: Methods,
    *,
    norm: Norm | None = None,
    kept: Sequence[Tensor] = (),
) -> RoundedLayer:
    """Rounds all groups that read one tensor to all their formats.

    Smoothing belongs to the norm, so all groups and formats share it: it is kept only where it raises the
    error of none and lowers their geometric mean by a hundredth, each measured after the other steps.

    Args:
        weights: Group -> its linears, float32 [out, in] each, finite.
        formats: Group -> formats wanted.
        layer_input: What is known of the tensor.
        methods: Steps to try.
        norm: The norm that makes the tensor; None where smoothing has nothing to fold into.
        kept: Further linears that read the tensor and stay as they are, for the balance of columns.
    """
    factor = inverse_factor(layer_input.hessian) if methods.gptq else None
    plain = {
        (name, precision): _round_group(weights[name], precision, layer_input, methods, factor)
        for name in weights
        for precision in formats[name]
    }
    if not (methods.smoothing and norm is not None):
        return RoundedLayer(plain, None, 0.0, layer_input.channel_amax)
    best = _best_smoothing(weights, formats, layer_input, norm, kept)
    if best is None:
        return RoundedLayer(plain, None, 0.0, layer_input.channel_amax)
    exponent, smoothing = best
    smoothed_input = layer_input.divided(smoothing.vector)
    factor = inverse_factor(smoothed_input.hessian) if methods.gptq else None
    smoothed = {}
    for name, precision in plain:
        scaled = _scaled(weights[name], smoothing.vector)
        smoothed[name, precision] = _round_group(scaled, precision, smoothed_input, methods, factor)
    pairs = [(_measured(plain[key]), _measured(smoothed[key])) for key in plain]
    accepted = _is_worth_it(pairs)
    groups = {
        key: _with_step(smoothed[key] if accepted else plain[key], Step("smoothing", accepted, *pair))
        for key, pair in zip(plain, pairs, strict=True)
    }
    if not accepted:
        return RoundedLayer(groups, None, exponent, layer_input.channel_amax)
    return RoundedLayer(groups, smoothing, exponent, smoothed_input.channel_amax)


def _is_worth_it(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether errors before and after smoothing speak for it."""
    if not pairs or any(after > before for before, after in pairs):
        return False
    logs = [log(max(after, _TINY) / max(before, _TINY)) for before, after in pairs]
    return sum(logs) / len(logs) <= log(1.0 - _SMOOTHING_GAIN)


def _measured(group: RoundedGroup) -> float:
    assert group.error is not None
    return group.error


def _with_step(group: RoundedGroup, step: Step) -> RoundedGroup:
    return RoundedGroup(group.weights, [step, *group.steps], group.error)


def _scaled(weights: Sequence[Tensor], smoothing: Tensor) -> list[Tensor]:
    return [weight * smoothing for weight in weights]


def _round_group(
    weights: Sequence[Tensor],
    precision: Precision,
    layer_input: LayerInput,
    methods: Methods,
    factor: Tensor | None,
) -> RoundedGroup:
    """Nearest, then searched scales, then GPTQ on the scales that won."""
    judge = Judge(weights, precision, layer_input.held_back, layer_input.encode_scale)
    scales = nearest_scales(weights, precision)
    best = [stored(weight, scale) for weight, scale in zip(weights, scales, strict=True)]
    error = judge.error(best)
    steps: list[Step] = []

    def consider(name: Literal["scale_search", "gptq"], found: list[QuantizedWeight]) -> bool:
        nonlocal best, error
        after = judge.error(found)
        accepted = after < error
        steps.append(Step(name, accepted, error, after))
        if accepted:
            best, error = found, after
        return accepted

    if methods.scale_search:
        searched = searched_scales(weights, precision, layer_input.hessian.diagonal())
        if consider("scale_search", _stored_all(weights, searched)):
            scales = searched
    if factor is not None:
        values = [compensated(weight, scale, factor) for weight, scale in zip(weights, scales, strict=True)]
        consider("gptq", _stored_all(values, scales))
    return RoundedGroup(best, steps, error)


def _stored_all(values: Sequence[Tensor], scales: Sequence[WeightScales]) -> list[QuantizedWeight]:
    return [stored(value, scale) for value, scale in zip(values, scales, strict=True)]


def _best_smoothing(
    weights: Weights, formats: Formats, layer_input: LayerInput, norm: Norm, kept: Sequence[Tensor]
) -> tuple[float, Smoothing] | None:
    """The candidate of least error on the rows to fit on, rounded to nearest; None if none lowers it.

    Errors of groups and formats are compared by their geometric mean, since those of FP8 are far smaller than
    those of NVFP4.
    """
    column = column_magnitude([*(linear for group in weights.values() for linear in group), *kept])
    activation = layer_input.fit.second_moment().sqrt()
    least = _mean_error(weights, formats, layer_input)
    best = None
    for candidate in candidates(activation, column):
        norm_weight, vector = fold_norm(norm.weight, candidate.smoothing, offset=norm.offset)
        scaled = {name: _scaled(group, vector) for name, group in weights.items()}
        error = _mean_error(scaled, formats, layer_input.divided(vector))
        if error < least:
            least, best = error, (candidate.exponent, Smoothing(vector, norm_weight))
    return best


def _mean_error(weights: Weights, formats: Formats, layer_input: LayerInput) -> float:
    """Geometric mean of the errors of all groups and formats, rounded to nearest, on the rows to fit on."""
    logs = []
    for name, group in weights.items():
        for precision in formats[name]:
            judge = Judge(group, precision, layer_input.fit, layer_input.encode_scale)
            error = judge.error(round_to_nearest(group, precision).weights)
            logs.append(log(max(error, _TINY)))
    return exp(sum(logs) / len(logs)) if logs else 0.0
