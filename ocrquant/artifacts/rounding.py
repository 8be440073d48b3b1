"""``rounding.json`` and ``.safetensors``: every group in every candidate format, as a checkpoint stores it.

Knows what was rounded, by which accepted steps, and how large the output error is. Does not know how a weight
was rounded, nor which format a plan will choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FileRecord, FrozenModel
from ocrquant.errors import ArtifactError
from ocrquant.formats import Precision
from ocrquant.tensor_file import TensorFile

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from ocrquant.formats.weights import QuantizedWeight

__all__ = [
    "GroupInput",
    "GroupRounding",
    "KvScales",
    "NormSmoothing",
    "RoundedWeights",
    "Rounding",
    "RoundingStep",
    "StepName",
    "norm_tensor_name",
    "weight_tensor_name",
]

StepName = Literal["smoothing", "scale_search", "gptq"]


def weight_tensor_name(linear: str, precision: Precision, tensor: str) -> str:
    """Name inside ``rounding.safetensors`` of a tensor of a rounded weight.

    Args:
        linear: Name of the linear.
        precision: The format.
        tensor: Suffix that a checkpoint stores it under: ``formats.weights.TENSOR_NAMES``.
    """
    return f"{linear}:{precision}:{tensor}"


def norm_tensor_name(norm: str, tensor: Literal["smoothing", "weight"]) -> str:
    """Name inside ``rounding.safetensors`` of a tensor of a smoothed norm.

    ``smoothing`` is float32 [hidden]: what the norm's output is divided by, and what the columns of each
    linear that reads it are multiplied by. ``weight`` is the norm's new weight in the dtype of the model. The
    vector is computed back from that weight after its rounding, so the two cancel up to the rounding of
    float32 products.
    """
    return f"{norm}:{tensor}"


class RoundingStep(FrozenModel):
    """A step beyond rounding to nearest, and why it was kept or not.

    Errors are the squared error of the layer's output, weights and activations quantized, over the squared
    output, on the held-back pages; text and image positions count alike, whatever their number.

    Attributes:
        step: Which step.
        accepted: Whether it is part of the stored weights.
        error_before: Error without it.
        error_after: Error with it.
    """

    step: StepName
    accepted: bool
    error_before: float = Field(ge=0)
    error_after: float = Field(ge=0)


class GroupRounding(FrozenModel):
    """One group of linears in one format.

    Attributes:
        group: Name of the group.
        precision: Its format.
        linears: Its linears; they share the steps.
        steps: Steps that were tried, in the order in which they were.
        error: Error of what is stored; see `RoundingStep`. None where nothing was measured, because the
            recipe asked for rounding to nearest alone.
    """

    group: str
    precision: Precision
    linears: list[str]
    steps: list[RoundingStep]
    error: float | None = Field(ge=0)

    def accepted(self, step: StepName) -> bool:
        """Whether a step is part of the stored weights."""
        return any(tried.step == step and tried.accepted for tried in self.steps)


class GroupInput(FrozenModel):
    """What the input of a group needs where it is quantized with a calibrated scale.

    Attributes:
        group: Name of the group.
        amax: Largest |x| after smoothing, over text and image positions of all calibration pages.
        encode_scale: NVFP4 global scale (compressed-tensors convention), exact in float32.
    """

    group: str
    amax: float = Field(ge=0)
    encode_scale: float = Field(gt=0)


class NormSmoothing(FrozenModel):
    """One norm whose output could be smoothed, and whether it is.

    Attributes:
        norm: Module name of the norm.
        linears: All linears that read its output, those that stay in bf16 included.
        accepted: Whether tensors of `norm_tensor_name` exist and must be applied.
        exponent: Exponent of the activations' share in the best candidate, 0 where none was tried.
    """

    norm: str
    linears: list[str]
    accepted: bool
    exponent: float


class KvScales(FrozenModel):
    """FP8 decode scales of the cache of one full-attention layer, exact in float32."""

    name: str
    k_decode_scale: float = Field(gt=0)
    v_decode_scale: float = Field(gt=0)


class Rounding(Artifact):
    """Rounded weights of all groups; the tensors lie in a file beside it.

    Smoothing is chosen once for each norm and belongs to every precision, bf16 included: whoever builds a
    model or checkpoint from this file applies it first, then replaces linears by rounded weights (which
    already contain it). `engine` says who rounded, as `weights.engine` of the recipe does.
    """

    FILE_NAME: ClassVar[str] = "rounding.json"
    STAGE: ClassVar[str] = "rounding"
    TENSORS_NAME: ClassVar[str] = "rounding.safetensors"

    engine: str = "ocrquant"
    num_held_back_pages: int = Field(ge=0)
    tensors: FileRecord
    groups: list[GroupRounding]
    group_inputs: list[GroupInput]
    norms: list[NormSmoothing]
    kv: list[KvScales]

    @model_validator(mode="after")
    def _check(self) -> Self:
        keys = {(group.group, group.precision) for group in self.groups}
        if len(keys) != len(self.groups):
            raise ValueError("a group is listed twice in one format")
        if {group.group for group in self.group_inputs} != {group for group, _ in keys}:
            raise ValueError("groups and group_inputs name different groups")
        return self

    def files(self) -> Mapping[str, FileRecord]:
        """The file of tensors."""
        return {self.TENSORS_NAME: self.tensors}

    def group(self, name: str, precision: Precision) -> GroupRounding:
        """How one group was rounded to one format.

        Raises:
            ArtifactError: It was not.
        """
        for group in self.groups:
            if (group.group, group.precision) == (name, precision):
                return group
        raise _missing(f"group {name} in {precision}")

    def open_weights(self, folder: Path) -> RoundedWeights:
        """Opens the tensors for reading one by one; use as a context manager.

        Args:
            folder: The run folder.

        Raises:
            ArtifactError: The file is missing or is not the one that this artefact was written with.
        """
        return RoundedWeights(self.checked_file(folder, self.TENSORS_NAME), self)

    def to_frame(self) -> pd.DataFrame:
        """One row a group, format and step tried, with errors before and after."""
        import pandas as pd

        columns = ["group", "precision", "error", "step", "accepted", "error_before", "error_after"]
        rows = [
            {"group": group.group, "precision": str(group.precision), "error": group.error}
            | step.model_dump()
            for group in self.groups
            for step in group.steps
        ]
        return pd.DataFrame(rows, columns=columns)


class RoundedWeights:
    """Reader of ``rounding.safetensors``: a tensor is in memory only once it is asked for.

    Args:
        path: The file.
        rounding: The artefact that it belongs to.
    """

    def __init__(self, path: Path, rounding: Rounding) -> None:
        self._file = TensorFile(path)
        self._names: dict[tuple[str, str], dict[str, str]] = {}
        for name in self._file.names():
            *owner, suffix = name.split(":")
            self._names.setdefault((owner[0], owner[1] if len(owner) > 1 else ""), {})[suffix] = name
        self._norm_of = {linear: norm for norm in rounding.norms if norm.accepted for linear in norm.linears}
        self._smoothed = {norm.norm for norm in self._norm_of.values()}
        self._encode_scales = {item.group: item.encode_scale for item in rounding.group_inputs}

    def weight(self, linear: str, precision: Precision) -> QuantizedWeight:
        """A linear's weight in one format, smoothing included.

        Raises:
            ArtifactError: The linear was not rounded to that format.
        """
        from ocrquant.formats.weights import weight_from_tensors

        names = self._names_of(linear, precision)
        return weight_from_tensors(
            precision, {suffix: self._file.read(name) for suffix, name in names.items()}
        )

    def part(self, linear: str, precision: Precision, suffix: str) -> Tensor:
        """One tensor of a linear's weight, as ``weight`` would read it.

        Args:
            linear: Name of the linear.
            precision: The format.
            suffix: Its name among ``formats.weights.TENSOR_NAMES``.

        Raises:
            ArtifactError: The linear was not rounded to that format.
        """
        names = self._names_of(linear, precision)
        if suffix not in names:
            raise _missing(f"{suffix} of linear {linear} in {precision}")
        return self._file.read(names[suffix])

    def smoothing(self, linear: str) -> Tensor | None:
        """What the columns of a linear's bf16 weight are multiplied by (`formats.weights.scale_columns`).

        float32 [in], or None where nothing is to be done. Also defined for linears that no group contains
        but that read a smoothed norm.
        """
        norm = self._norm_of.get(linear)
        return None if norm is None else self._tensor(norm_tensor_name(norm.norm, "smoothing"))

    def norm_weight(self, norm: str) -> Tensor | None:
        """The new weight of a norm in the dtype of the model, or None where it stays as it is."""
        return self._tensor(norm_tensor_name(norm, "weight")) if norm in self._smoothed else None

    def smoothed_norms(self) -> list[str]:
        """Norms with a new weight, sorted."""
        return sorted(self._smoothed)

    def smoothed_linears(self) -> list[str]:
        """Linears whose columns are multiplied, sorted."""
        return sorted(self._norm_of)

    def input_encode_scale(self, group: str) -> Tensor:
        """NVFP4 global scale of a group's input, float32 [1].

        Raises:
            ArtifactError: The group was not rounded.
        """
        import torch

        if group not in self._encode_scales:
            raise _missing(f"group {group}")
        return torch.tensor([self._encode_scales[group]], dtype=torch.float32)

    def close(self) -> None:
        """Closes the file; tensors already read stay valid."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _names_of(self, linear: str, precision: Precision) -> Mapping[str, str]:
        names = self._names.get((linear, str(precision)))
        if names is None:
            raise _missing(f"linear {linear} in {precision}")
        return names

    def _tensor(self, name: str) -> Tensor:
        return self._file.read(name)


def _missing(thing: str) -> ArtifactError:
    return ArtifactError(
        Rounding.FILE_NAME, expected=thing, given="none", fix="run the stage `rounding` again"
    )
