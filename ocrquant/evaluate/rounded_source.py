"""The weights of a plan that was never written: the source model with some linears replaced by rounded ones.

Says tensor by tensor what an exported checkpoint of the plan would hold. Knows the rounding stage's file
and a folder of safetensors. Does not know what runs the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ocrquant.artifacts import KvScales, RoundedWeights, Rounding
from ocrquant.checkpoint import FILE_FORMATS, KV_SCALE_NAMES, CheckpointReader
from ocrquant.formats import Precision
from ocrquant.formats.weights import QuantizedWeight, scale_columns

__all__ = ["RoundedSource"]


class RoundedSource:
    """A plan as ``engine.source.StoredWeights``; reads while both files are open.

    Args:
        source: The unquantized model, open.
        rounding: How weights were rounded.
        weights: Its tensors, open.
        groups: Precision by group; groups in bf16 add nothing.
        kv: FP8 scales of the caches of all full-attention layers; none for bf16 caches.

    Raises:
        ArtifactError: A group was not rounded to its precision.
    """

    def __init__(
        self,
        source: CheckpointReader,
        rounding: Rounding,
        weights: RoundedWeights,
        groups: Mapping[str, Precision],
        kv: Sequence[KvScales] = (),
    ) -> None:
        self._source, self._weights = source, weights
        self._precisions: dict[str, Precision] = {}
        self._group_of: dict[str, str] = {}
        for group, precision in groups.items():
            if precision is not Precision.BF16:
                names = rounding.group(group, precision).linears
                self._precisions |= dict.fromkeys(names, precision)
                self._group_of |= dict.fromkeys(names, group)
        # A plan that quantizes nothing leaves the norms alone too: it is the source.
        is_plain = not self._precisions
        self._norms = set() if is_plain else set(weights.smoothed_norms())
        self._smoothed = set() if is_plain else set(weights.smoothed_linears())
        self._kv = {scales.name: (scales.k_decode_scale, scales.v_decode_scale) for scales in kv}

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors as a checkpoint would hold them; scales of caches are not counted."""
        specs, file_format = self._source.specs, FILE_FORMATS["compressed-tensors"]
        quantized = {f"{name}.weight" for name in self._precisions}
        plain = sum(spec.num_bytes for name, spec in specs.items() if name not in quantized)
        return plain + sum(
            spec.num_bytes
            for name, precision in self._precisions.items()
            for spec in file_format.specs(name, precision, *specs[f"{name}.weight"].shape)
        )

    @property
    def num_parameters(self) -> int:
        """Numbers that the weights stand for; scales are none."""
        return sum(spec.num_elements for spec in self._source.specs.values())

    def names(self) -> set[str]:
        """See ``models.weights.WeightSource``."""
        return set(self._source.specs) | {f"{name}.{part}" for name in self._kv for part in KV_SCALE_NAMES}

    def tensor(self, name: str) -> Tensor:
        """See ``models.weights.WeightSource``."""
        module, _, part = name.rpartition(".")
        if part == "weight" and module in self._norms:
            weight = self._weights.norm_weight(module)
            assert weight is not None, "a smoothed norm has a weight"
            return weight
        tensor = self._source.read(name)
        factors = self._weights.smoothing(module) if part == "weight" and module in self._smoothed else None
        return tensor if factors is None else scale_columns(tensor, factors)

    def quantized(self, linear: str) -> QuantizedWeight | None:
        """See ``models.weights.WeightSource``."""
        precision = self._precisions.get(linear)
        return None if precision is None else self._weights.weight(linear, precision)

    def input_encode_scale(self, linear: str) -> Tensor | None:
        """See ``models.weights.WeightSource``."""
        if self._precisions.get(linear) is not Precision.NVFP4:
            return None
        return self._weights.input_encode_scale(self._group_of[linear])

    def kv_scales(self, attention: str) -> tuple[float, float] | None:
        """See ``models.weights.WeightSource``."""
        return self._kv.get(attention)
