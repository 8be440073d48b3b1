"""The weights of every group in every format that fits it, rounded to nearest.

Knows modules, groups and formats. Knows no score: what is scored is what `pack` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ocrquant.artifacts import GroupRecord
from ocrquant.errors import ShapeError
from ocrquant.formats import FORMATS, Precision
from ocrquant.formats.nvfp4_scales import global_encode_scale
from ocrquant.formats.weights import QuantizedWeight, weight_tensors
from ocrquant.rounding import round_to_nearest
from ocrquant.search.scores import Key
from ocrquant.simulate import SimulatedLinear

__all__ = ["RoundedModule", "group_records", "round_module"]


@dataclass(frozen=True, slots=True)
class RoundedModule:
    """Quantized weights of a module.

    Attributes:
        weights: Of each group and format, by the name of the linear.
        input_encode_scale: NVFP4 global scale of what each group reads, float32 [1].
        linears: The same weights, ready to be multiplied with.
    """

    weights: dict[Key, dict[str, QuantizedWeight]]
    input_encode_scale: dict[str, Tensor]
    linears: dict[Key, dict[str, SimulatedLinear]]

    def plan(self, groups: Mapping[str, Precision]) -> dict[str, SimulatedLinear]:
        """Quantized linears of a plan by name; groups in bf16 add nothing."""
        found: dict[str, SimulatedLinear] = {}
        for group, precision in groups.items():
            if precision is not Precision.BF16:
                found |= self.linears[group, precision]
        return found

    def pack(self, groups: Mapping[str, Precision]) -> dict[str, Tensor]:
        """The quantized tensors of a plan under the names of compressed-tensors, such as ``a.weight_packed``.

        NVFP4 linears come with ``input_global_scale``, the divisor of their activations.
        """
        found: dict[str, Tensor] = {}
        for group, precision in groups.items():
            if precision is Precision.BF16:
                continue
            for name, weight in self.weights[group, precision].items():
                found |= {f"{name}.{part}": tensor for part, tensor in weight_tensors(weight).items()}
                if precision is Precision.NVFP4:
                    found[f"{name}.input_global_scale"] = self.input_encode_scale[group].clone()
        return found


def group_records(
    module: nn.Module, groups: Mapping[str, Sequence[str]], candidates: Sequence[Precision]
) -> list[GroupRecord]:
    """The groups as artefacts state them, with the formats that fit them.

    Args:
        module: The module.
        groups: Names of linears by group.
        candidates: Formats that compete with bf16.

    Raises:
        ShapeError: No format fits any group.
    """
    places, records = _places(groups), []
    for group, names in groups.items():
        shapes = [_shape(module, name) for name in names]
        fitting = [p for p in candidates if all(FORMATS[p].fits(columns) for _, columns in shapes)]
        reasons = [
            f"not {p}, as its width is no multiple of {FORMATS[p].width_multiple}"
            for p in candidates
            if p not in fitting
        ]
        kind, block = places[group]
        records.append(
            GroupRecord(
                name=group,
                kind=kind,
                block=block,
                linears=list(names),
                shapes=shapes,
                num_weights=sum(rows * columns for rows, columns in shapes),
                precisions=[Precision.BF16, *fitting],
                reason="; ".join(reasons),
            )
        )
    if all(len(record.precisions) == 1 for record in records):
        widths = sorted({columns for record in records for _, columns in record.shapes})
        raise ShapeError(
            "linears of the module",
            expected=f"a width that fits one of {', '.join(candidates)}",
            given=", ".join(map(str, widths)),
            fix="name another format among the candidates",
        )
    return records


def round_module(
    module: nn.Module, groups: Sequence[GroupRecord], amax: Mapping[str, float]
) -> RoundedModule:
    """Rounds every group to every format that is open to it.

    Args:
        module: The module.
        groups: Its groups; the linears of one share their NVFP4 scales.
        amax: Largest magnitude that each linear reads.

    Raises:
        WeightValueError: A weight holds NaN or Inf.
    """
    rounded = RoundedModule({}, {}, {})
    for group in groups:
        linears = [module.get_submodule(name) for name in group.linears]
        weights = [linear.weight.detach() for linear in linears if isinstance(linear, nn.Linear)]
        scale = global_encode_scale(torch.tensor(max(amax[name] for name in group.linears)))
        rounded.input_encode_scale[group.name] = scale
        for precision in group.precisions:
            if precision is Precision.BF16:
                continue
            found = dict(zip(group.linears, round_to_nearest(weights, precision).weights, strict=True))
            input_scale = scale if precision is Precision.NVFP4 else None
            rounded.weights[group.name, precision] = found
            rounded.linears[group.name, precision] = {
                name: SimulatedLinear.of(weight, input_scale) for name, weight in found.items()
            }
    return rounded


def _shape(module: nn.Module, name: str) -> tuple[int, int]:
    linear = module.get_submodule(name)
    assert isinstance(linear, nn.Linear), "groups hold linears"
    return linear.out_features, linear.in_features


def _places(groups: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, int | None]]:
    """Kind and block of each group: the first number in its name is the block, what follows it the kind.

    ``layers.3.mlp.up`` is ``mlp.up`` of block 3; where two groups would be told apart no more, what stands
    before the number belongs to the kind too.
    """
    short = {group: _place(group, keeps_head=False) for group in groups}
    counts = list(short.values())
    return {
        group: place if counts.count(place) == 1 else _place(group, keeps_head=True)
        for group, place in short.items()
    }


def _place(group: str, *, keeps_head: bool) -> tuple[str, int | None]:
    steps = group.split(".")
    number = next((index for index, step in enumerate(steps) if step.isdecimal()), None)
    if number is None:
        return group, None
    head, tail = steps[:number], steps[number + 1 :]
    kind = ".".join([*head, *tail] if keeps_head or not tail else tail)
    return kind or "linear", int(steps[number])
