"""A checkpoint folder as the source of a model's weights, and whether its files do what its config says.

Knows the schemes of ``ocrquant.checkpoint``. Does not know families: which tensors a model wants is the
model's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from torch import Tensor

from ocrquant.checkpoint import StoredCheckpoint, file_format_of
from ocrquant.errors import ModelError
from ocrquant.formats import Precision
from ocrquant.formats.weights import QuantizedWeight
from ocrquant.models.weights import WeightSource

__all__ = ["CheckpointSource", "StoredWeights", "check_declared"]


class StoredWeights(WeightSource, Protocol):
    """The tensors of a model, and how much of them there is."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        ...

    @property
    def num_parameters(self) -> int:
        """Numbers that the weights stand for; scales are none."""
        ...


class CheckpointSource:
    """A folder that this package exported, or the model that it was made from; use as a context manager.

    Args:
        folder: Folder with ``config.json`` and safetensors files.
        config: What ``config.json`` holds.

    Raises:
        ModelError: A file is damaged, a scheme is not supported, or the tensors are not stored as the
            configuration says.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._stored = StoredCheckpoint(folder)
        try:
            self._kv = {scales.name: scales for scales in self._stored.kv}
            names = set(self._stored.names)
            check_declared(folder, config, self._stored.linears, names, has_kv=bool(self._kv))
        except BaseException:
            self._stored.close()
            raise

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors of the folder."""
        return sum(spec.num_bytes for spec in self._stored.specs.values())

    @property
    def num_parameters(self) -> int:
        """Numbers that the stored weights stand for; scales are none."""
        return self._stored.num_parameters

    def names(self) -> set[str]:
        """See ``models.weights.WeightSource``."""
        return set(self._stored.names)

    def tensor(self, name: str) -> Tensor:
        """See ``models.weights.WeightSource``."""
        return self._stored.tensor(name)

    def quantized(self, linear: str) -> QuantizedWeight | None:
        """See ``models.weights.WeightSource``."""
        return self._stored.weight(linear) if linear in self._stored.linears else None

    def input_encode_scale(self, linear: str) -> Tensor | None:
        """See ``models.weights.WeightSource``."""
        return self._stored.input_encode_scale(linear) if linear in self._stored.linears else None

    def kv_scales(self, attention: str) -> tuple[float, float] | None:
        """See ``models.weights.WeightSource``."""
        scales = self._kv.get(attention)
        return None if scales is None else (scales.k_decode_scale, scales.v_decode_scale)

    def close(self) -> None:
        """Gives the files back."""
        self._stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_declared(
    folder: Path,
    config: Mapping[str, Any],
    stored: Mapping[str, Precision],
    names: set[str],
    *,
    has_kv: bool,
) -> None:
    """Refuses a folder whose tensors are not stored as its ``quantization_config`` says.

    Args:
        folder: For errors.
        config: What ``config.json`` holds.
        stored: Precision of each quantized linear as it is stored.
        names: Names of all tensors, the weight of a linear as ``<linear>.weight``.
        has_kv: Whether there are scales of an FP8 cache.

    Raises:
        ModelError: A linear has another precision than declared, or scales of the cache are there without a
            scheme or the other way round.
    """
    declared, file_format = config.get("quantization_config") or {}, file_format_of(config)
    linears = sorted(name.removesuffix(".weight") for name in names if name.endswith(".weight"))
    for linear in linears:
        said, by_rule = file_format.declared(declared, linear) if declared else (None, False)
        # A rule for all linears cannot tell one that was left alone from an embedding or a norm.
        if said != stored.get(linear) and not (by_rule and linear not in stored):
            raise ModelError(
                f"{linear} in {folder}",
                expected=f"{said or 'no quantized weight'}, as quantization_config says",
                given=stored.get(linear, "an unquantized weight"),
                fix="export the model again",
            )
    has_scheme = declared.get("kv_cache_scheme") is not None
    if has_scheme != has_kv:
        scales = " and ".join(file_format.kv_names)
        raise ModelError(
            f"kv_cache_scheme in {folder / 'config.json'}",
            expected=f"scales {scales} of each attention layer with it, none without",
            given="a scheme and no scales" if has_scheme else "scales and no scheme",
            fix="export the model again",
        )
