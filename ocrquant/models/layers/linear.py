"""The one seam where quantization meets a model: what a linear is stored as, what it reads, what runs.

Linears that read the same rows become one product: weights of one precision are packed together along their
outputs, others side by side, each writing its own columns. Every linear of the checkpoint leaves a record of
what the checkpoint asks for and what is computed instead or as asked; a wish that cannot be met is refused.

Knows stored weights and forms of operands. Does not know layers or what a row means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from ocrquant.errors import ModelError
from ocrquant.formats import Precision
from ocrquant.kernels.linear import PackedWeight, linear, pack
from ocrquant.kernels.matmul.arch import has_nvfp4_units
from ocrquant.kernels.operand import OperandSpec
from ocrquant.kernels.selection import choices
from ocrquant.models.weights import LinearWeight, WeightReader
from ocrquant.models.workspace import OperandSlot, Scratch, Workspace

__all__ = ["Activations", "Linear", "LinearFactory", "LinearRecord", "records_table"]

Activations = Literal["quantized", "plain"]
"""``quantized``: as each linear's scheme asks. ``plain``: never; weights stay as they are stored."""

_ASKED = {
    Precision.BF16: "plain",
    Precision.FP8: "fp8, scaled by token",
    Precision.NVFP4: "nvfp4, calibrated",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRecord:
    """What became of one linear of the checkpoint.

    Attributes:
        name: Its name in the checkpoint.
        product: The product that computes it, shared by all linears that are computed together.
        out_features: Rows of its weight.
        in_features: Columns of its weight.
        stored: Precision of its weight, on disk and in memory.
        asked: Activations that its scheme asks for.
        reads: Activations that it gets.
        layout: How its weight lies in memory: in the panels of the native op, or as it is stored.
    """

    name: str
    product: str
    out_features: int
    in_features: int
    stored: Precision
    asked: str
    reads: str
    layout: str

    @property
    def as_asked(self) -> bool:
        """Whether it gets the activations that its scheme asks for."""
        return self.asked == self.reads


@dataclass(frozen=True, slots=True)
class _Segment:
    """Neighbouring linears of one precision, packed as one weight."""

    weight: PackedWeight
    bias: Tensor | None
    columns: slice
    spec: OperandSpec
    reads: OperandSlot


class Linear:
    """A product of the rows of one operand with the weights of one or several linears; see ``LinearFactory``.

    Args:
        name: Its name.
        segments: Its parts from the first output column to the last.
        out_features: All output columns.
    """

    def __init__(self, name: str, segments: Sequence[_Segment], out_features: int) -> None:
        self.name = name
        self.out_features = out_features
        self._segments = tuple(segments)

    @property
    def specs(self) -> tuple[OperandSpec, ...]:
        """The forms of the operand that it reads."""
        return tuple(segment.spec for segment in self._segments)

    @property
    def weights(self) -> tuple[PackedWeight, ...]:
        """Its packed weights, from the first output column to the last."""
        return tuple(segment.weight for segment in self._segments)

    def __call__(self, scratch: Scratch, out: Tensor) -> None:
        """Multiplies.

        Args:
            scratch: Holds the operand.
            out: [R, out_features] in the dtype of activations or float32, written; rows may be strided.
        """
        if len(self._segments) == 1:
            (segment,) = self._segments
            linear(scratch.operand(segment.reads), segment.weight, out, segment.bias)
            return
        for segment in self._segments:
            columns = out[:, segment.columns]
            linear(scratch.operand(segment.reads), segment.weight, columns, segment.bias)


class LinearFactory:
    """Makes the linears of a model and keeps a record of each.

    Args:
        reader: The checkpoint.
        workspace: Where operands lie.
        activations: Whether activations are quantized as the checkpoint asks.

    Attributes:
        records: What became of every linear so far.
        num_bytes: Of all packed weights so far.
    """

    def __init__(self, reader: WeightReader, workspace: Workspace, activations: Activations) -> None:
        self.records: list[LinearRecord] = []
        self.num_bytes = 0
        self._reader = reader
        self._workspace = workspace
        self._activations = activations

    def make(
        self,
        product: str,
        operand: str,
        linears: Sequence[tuple[str, int]],
        in_features: int,
        *,
        bias: bool = False,
    ) -> Linear:
        """One product over several linears of the checkpoint.

        Args:
            product: Its name.
            operand: Name of the operand that it reads; see ``operand``.
            linears: Name and output width of each, in the order of the output's columns.
            in_features: Width of the operand.
            bias: Whether each linear has a bias.

        Raises:
            ModelError: A tensor is missing or has another shape.
        """
        weights = [(name, self._reader.take_linear(name, out, in_features)) for name, out in linears]
        biases = {name: self._reader.take(f"{name}.bias", (out,)) for name, out in linears} if bias else {}
        return self.of_weights(product, operand, weights, biases)

    def of_weights(
        self,
        product: str,
        operand: str,
        weights: Sequence[tuple[str, LinearWeight]],
        biases: dict[str, Tensor],
    ) -> Linear:
        """The same of weights that were taken before, such as an embedding that is also the head."""
        segments, start = [], 0
        for spec, run in self._runs(weights):
            end = start + sum(weight.shape[0] for _, weight in run)
            packed = pack([weight for _, weight in run], self._reader.device)
            bias = torch.cat([biases[name] for name, _ in run]) if biases else None
            reads = self._workspace.operand(operand, packed.in_features, spec)
            segments.append(_Segment(packed, bias, slice(start, end), spec, reads))
            self.num_bytes += packed.nbytes
            self._record(product, run, packed, spec)
            start = end
        return Linear(product, segments, start)

    def operand(self, name: str, width: int, *readers: Linear) -> OperandSlot:
        """What a producer must write for the linears that read its rows: their forms and no other.

        Args:
            name: The name under which they read it.
            width: Elements of a row.
            readers: All linears that read it.

        Raises:
            ModelError: Two of them want different global scales of the same rows.
        """
        specs = [spec for reader in readers for spec in reader.specs]
        scales = [spec.nvfp4_encode_scale for spec in specs if spec.nvfp4_encode_scale is not None]
        if any(not torch.equal(scale, scales[0]) for scale in scales):
            raise ModelError(
                "global input scales of " + " and ".join(reader.name for reader in readers),
                expected="one for all linears that read the same rows",
                given=sorted({scale.item() for scale in scales}),
                fix="export the model again, or name plain activations",
            )
        union = OperandSpec(
            plain=any(spec.plain for spec in specs),
            fp8=any(spec.fp8 for spec in specs),
            nvfp4_encode_scale=scales[0] if scales else None,
            swizzles=bool(scales) and has_nvfp4_units(self._reader.device),
        )
        return self._workspace.operand(name, width, union)

    def _runs(
        self, weights: Sequence[tuple[str, LinearWeight]]
    ) -> Iterable[tuple[OperandSpec, list[tuple[str, LinearWeight]]]]:
        """Neighbours that are packed together, with what they read: one precision, one scale of the input."""
        specs = {name: self._spec(name, weight) for name, weight in weights}

        def key(item: tuple[str, LinearWeight]) -> tuple[Precision, float | None]:
            scale = specs[item[0]].nvfp4_encode_scale
            return _precision(item[1]), None if scale is None else scale.item()

        for _, run in groupby(weights, key):
            members = list(run)
            yield specs[members[0][0]], members

    def _spec(self, name: str, weight: LinearWeight) -> OperandSpec:
        precision = _precision(weight)
        if precision is Precision.BF16 or self._activations == "plain":
            return OperandSpec(plain=True, fp8=False, nvfp4_encode_scale=None)
        if precision is Precision.FP8:
            return OperandSpec(plain=False, fp8=True, nvfp4_encode_scale=None)
        scale = self._reader.input_encode_scale(name)
        swizzles = has_nvfp4_units(self._reader.device)
        return OperandSpec(plain=False, fp8=False, nvfp4_encode_scale=scale, swizzles=swizzles)

    def _record(
        self, product: str, run: list[tuple[str, LinearWeight]], packed: PackedWeight, spec: OperandSpec
    ) -> None:
        asked = _ASKED[packed.precision]
        for name, weight in run:
            self.records.append(
                LinearRecord(
                    name=name,
                    product=product,
                    out_features=weight.shape[0],
                    in_features=weight.shape[1],
                    stored=packed.precision,
                    asked=asked,
                    reads="plain" if spec.plain else asked,
                    layout="as stored" if packed.panels is None else "panels",
                )
            )


def records_table(records: Iterable[LinearRecord]) -> str:
    """One line a linear: what the checkpoint asks for, and what runs; ``(!)`` where these differ.

    The last line says on which implementation the products of this process ran.
    """
    head = ("linear", "shape", "weight", "activations asked", "activations read", "product", "layout")
    lines = [head]
    for record in records:
        shape = f"{record.out_features}x{record.in_features}"
        reads = record.reads if record.as_asked else f"{record.reads} (!)"
        lines.append((record.name, shape, record.stored, record.asked, reads, record.product, record.layout))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    choice = choices().get("linear")
    ran = "none has run yet" if choice is None else f"{choice.implementation} ({choice.reason})"
    return "\n".join([*(row.rstrip() for row in rows), f"products: {ran}"])


def _precision(weight: LinearWeight) -> Precision:
    return Precision.BF16 if isinstance(weight, Tensor) else weight.precision
