"""Every tensor of an exported checkpoint: what it will be, and how to make it when its turn comes.

Knows which tensors of the source a plan replaces. Holds none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ocrquant.adapters import ModelMap
from ocrquant.artifacts import KvScales, RoundedWeights
from ocrquant.checkpoint import (
    INPUT_SCALE_NAME,
    KV_SCALE_NAMES,
    CheckpointReader,
    TensorSpec,
    dtype_name,
    stored_specs,
)
from ocrquant.errors import ArtifactError, WeightValueError
from ocrquant.formats import Precision
from ocrquant.formats.weights import NVFP4Weight, scale_columns, weight_tensors

__all__ = ["CheckpointTensors"]

Maker = Callable[[], Tensor]


class CheckpointTensors:
    """The tensors of a checkpoint in the order of the source, each made when it is asked for.

    Args:
        source: The model, open.
        model_map: Its structure.
        weights: Rounded weights, open.
        groups: Precision by group, all groups of the map.
        kv: Scales of the caches to be stored.

    Attributes:
        specs: What is to be written.

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
    ) -> None:
        self.specs: list[TensorSpec] = []
        self._source = source
        self._weights = weights
        self._makers: dict[str, Maker] = {}
        self._scales: set[str] = set()
        self._group_of = {linear.name: group.name for group in model_map.groups for linear in group.linears}
        self._precisions = {name: groups[group] for name, group in self._group_of.items()}
        # A plan that quantizes nothing leaves the norms alone too: its checkpoint is the source.
        is_plain = all(precision is Precision.BF16 for precision in groups.values())
        self._norms = set() if is_plain else set(weights.smoothed_norms())
        self._smoothed = set() if is_plain else set(weights.smoothed_linears())
        for group in model_map.groups:
            if groups[group.name] is Precision.NVFP4:
                self._check_shared(group.name, [linear.name for linear in group.linears])
        for spec in source.specs.values():
            self._add_from_source(spec)
        for scales in kv:
            values = (scales.k_decode_scale, scales.v_decode_scale)
            for part, value in zip(KV_SCALE_NAMES, values, strict=True):
                spec = TensorSpec(f"{scales.name}.{part}", "F32", (1,))
                self._add(spec, partial(torch.tensor, [value], dtype=torch.float32))
                self._scales.add(spec.name)

    def make(self, name: str) -> Tensor:
        """The tensor of a name, on the CPU.

        Raises:
            ModelError: The source cannot be read.
            WeightValueError: A scale is not finite and positive.
        """
        tensor = self._makers[name]()
        if name in self._scales:
            values = tensor.float()
            if not bool((torch.isfinite(values) & (values > 0)).all()):
                raise WeightValueError(
                    name,
                    expected="finite scales above 0",
                    given=f"{values.min().item()} to {values.max().item()}",
                    fix="run the stage `rounding` again",
                )
        return tensor

    def weight_bytes(self, linears: Sequence[str]) -> int:
        """Bytes that the weights of some linears take as written, scales included."""
        wanted = set(linears)
        return sum(
            spec.num_bytes
            for spec in self.specs
            if spec.name.rpartition(".")[0] in wanted and not spec.name.endswith((".bias", INPUT_SCALE_NAME))
        )

    def _add(self, spec: TensorSpec, maker: Maker) -> None:
        self.specs.append(spec)
        self._makers[spec.name] = maker

    def _add_from_source(self, spec: TensorSpec) -> None:
        module, _, part = spec.name.rpartition(".")
        precision = self._precisions.get(module, Precision.BF16)
        if part != "weight":
            self._add(spec, partial(self._source.read, spec.name))
        elif precision is not Precision.BF16:
            for stored in stored_specs(module, precision, *spec.shape):
                self._add(stored, partial(self._quantized_part, module, stored.name.rpartition(".")[2]))
                if stored.name.endswith("_scale"):
                    self._scales.add(stored.name)
        elif module in self._norms:
            dtype = dtype_name(self._norm_weight(module).dtype)
            self._add(TensorSpec(spec.name, dtype, spec.shape), partial(self._norm_weight, module))
        elif module in self._smoothed:
            self._add(spec, partial(self._scaled, module))
        else:
            self._add(spec, partial(self._source.read, spec.name))

    def _quantized_part(self, linear: str, part: str) -> Tensor:
        if part == INPUT_SCALE_NAME:
            return self._weights.input_encode_scale(self._group_of[linear])
        return weight_tensors(self._weights.weight(linear, self._precisions[linear]))[part]

    def _norm_weight(self, norm: str) -> Tensor:
        weight = self._weights.norm_weight(norm)
        assert weight is not None
        return weight

    def _scaled(self, linear: str) -> Tensor:
        factors = self._weights.smoothing(linear)
        assert factors is not None
        return scale_columns(self._source.read(f"{linear}.weight"), factors)

    def _check_shared(self, group: str, linears: Sequence[str]) -> None:
        """Servers keep one global scale for a fused layer: different ones would decode wrongly."""
        scales = set()
        for name in linears:
            weight = self._weights.weight(name, Precision.NVFP4)
            assert isinstance(weight, NVFP4Weight)
            scales.add(weight.encode_scale.item())
        if len(scales) > 1:
            raise ArtifactError(
                f"rounded weights of group {group}",
                expected="one global scale for all of its linears",
                given=", ".join(str(scale) for scale in sorted(scales)),
                fix="run the stage `rounding` again",
            )
