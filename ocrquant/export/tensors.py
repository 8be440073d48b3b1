"""Every tensor of an exported plan: rounded weights in place of the chosen linears, all else as it was.

Knows which tensors of the source a plan replaces. Holds none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from ocrquant.adapters import ModelMap
from ocrquant.artifacts import KvScales, RoundedWeights
from ocrquant.checkpoint import INPUT_SCALE_NAME, CheckpointReader, FileFormat, TensorSpec, dtype_name
from ocrquant.errors import ArtifactError
from ocrquant.export.tensor_list import TensorList
from ocrquant.formats import FORMATS, Precision
from ocrquant.formats.weights import scale_columns

__all__ = ["CheckpointTensors"]

_PIECE_ELEMENTS = 1 << 24
"""Rows of so many elements are smoothed at once: the float32 copies of a vocabulary-wide weight are large."""


class CheckpointTensors(TensorList):
    """The tensors of a checkpoint in the order of the source.

    Args:
        source: The model, open.
        model_map: Its structure.
        weights: Rounded weights, open.
        groups: Precision by group, all groups of the map.
        kv: Scales of the caches to be stored.
        file_format: The format to write.

    Raises:
        ArtifactError: The members of a group do not share one global scale.
    """

    def __init__(
        self,
        source: CheckpointReader,
        model_map: ModelMap,
        weights: RoundedWeights,
        groups: Mapping[str, Precision],
        kv: Sequence[KvScales],
        file_format: FileFormat,
    ) -> None:
        super().__init__(file_format)
        self._source = source
        self._weights = weights
        self._group_of = {linear.name: group.name for group in model_map.groups for linear in group.linears}
        self._precisions = {name: groups[group] for name, group in self._group_of.items()}
        # A plan that quantizes nothing leaves the norms alone too: its checkpoint is the source.
        is_plain = all(precision is Precision.BF16 for precision in groups.values())
        self._norms = set() if is_plain else set(weights.smoothed_norms())
        self._smoothed = set() if is_plain else set(weights.smoothed_linears())
        for group in model_map.groups:
            if groups[group.name] is Precision.NVFP4:
                self._check_shared(group.name, [linear.name for linear in group.linears])
        apart = self._taken_apart()
        for spec in source.specs.values():
            for name in apart.get(spec.name, [spec.name]):
                self._add_from_source(source.spec(name))
        self.add_kv(kv)

    def weight_bytes(self) -> int:
        """Bytes that the weights of all searched linears take as written, scales included."""
        specs = {linear: self._source.spec(f"{linear}.weight") for linear in self._precisions}
        return sum(
            FORMATS[precision].weight_bytes(*specs[linear].shape)
            if precision is not Precision.BF16
            else specs[linear].num_bytes
            for linear, precision in self._precisions.items()
        )

    def _taken_apart(self) -> dict[str, list[str]]:
        """Tensors of all experts of a layer -> the names of single weights that are written in their place.

        Where nothing changes in any expert of the layer the two tensors of the source stay.
        """
        stacked = self._source.stacked
        changed = {
            weight.prefix
            for name, weight in stacked.items()
            if (linear := name.removesuffix(".weight")) in self._smoothed
            or self._precisions.get(linear, Precision.BF16) is not Precision.BF16
        }
        found: dict[str, list[str]] = {}
        for name, weight in stacked.items():
            if weight.prefix in changed:
                found.setdefault(weight.stack, []).append(name)
        return found

    def _add_from_source(self, spec: TensorSpec) -> None:
        module, _, part = spec.name.rpartition(".")
        precision = self._precisions.get(module, Precision.BF16)
        if part != "weight":
            self.add(spec, partial(self._source.read, spec.name))
        elif precision is not Precision.BF16:
            rows, columns = spec.shape
            self.add_linear(module, precision, (rows, columns), partial(self._part, module))
        elif module in self._norms:
            dtype = dtype_name(self._norm_weight(module).dtype)
            self.add(TensorSpec(spec.name, dtype, spec.shape), partial(self._norm_weight, module))
        elif module in self._smoothed:
            self.add(spec, partial(self._scaled, module))
        else:
            self.add(spec, partial(self._source.read, spec.name))

    def _part(self, linear: str, part: str) -> Tensor:
        if part == INPUT_SCALE_NAME:
            return self._weights.input_encode_scale(self._group_of[linear])
        return self._weights.part(linear, self._precisions[linear], part)

    def _norm_weight(self, norm: str) -> Tensor:
        weight = self._weights.norm_weight(norm)
        assert weight is not None
        return weight

    def _scaled(self, linear: str) -> Tensor:
        factors = self._weights.smoothing(linear)
        assert factors is not None
        weight = self._source.read(f"{linear}.weight")
        for rows in weight.split(max(1, _PIECE_ELEMENTS // weight.shape[-1])):
            rows.copy_(scale_columns(rows, factors))
        return weight

    def _check_shared(self, group: str, linears: Sequence[str]) -> None:
        """Servers keep one global scale for a fused layer: different ones would decode wrongly."""
        scales = {self._weights.part(name, Precision.NVFP4, "weight_global_scale").item() for name in linears}
        if len(scales) > 1:
            raise ArtifactError(
                f"rounded weights of group {group}",
                expected="one global scale for all of its linears",
                given=", ".join(str(scale) for scale in sorted(scales)),
                fix="run the stage `rounding` again",
            )
