"""Parts of a tower from the tensors of a checkpoint and the numbers of its configuration.

Knows what a norm, a linear with bias and a patch embedding are stored as; no family.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ocrquant.errors import ModelError
from ocrquant.models.config import Section
from ocrquant.models.vision.encoder import Affine, GeluForm, Norm
from ocrquant.models.weights import WeightReader

__all__ = ["VisionReader", "axial_frequencies"]

_GELUS: Mapping[str, GeluForm] = {"gelu": "erf", "gelu_pytorch_tanh": "tanh"}
_DEFAULT_THETA = 10000.0


class VisionReader:
    """Takes the tensors of a tower.

    Args:
        reader: The checkpoint.
        config: ``vision_config``; keys that are left out have their value in ``defaults``.
        defaults: Of the family's configuration class in ``transformers``.
    """

    def __init__(self, reader: WeightReader, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.reader = reader
        self._config = Section({**defaults, **config}, "vision_config")

    def number(self, key: str) -> int:
        """A positive number of the configuration.

        Raises:
            ModelError: It is something else.
        """
        value = self._config.raw(key)
        if isinstance(value, list | tuple) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(
                f"vision_config.{key}", expected="a number from 1", given=value, fix="fetch config.json again"
            )
        return value

    def gelu(self) -> GeluForm:
        """Which GELU ``hidden_act`` names.

        Raises:
            ModelError: It names something else.
        """
        name = str(self._config.raw("hidden_act"))
        if name not in _GELUS:
            raise ModelError(
                "vision_config.hidden_act",
                expected=f"one of {', '.join(_GELUS)}",
                given=name,
                fix="see the supported models",
            )
        return _GELUS[name]

    def frequencies(self, head_dim: int) -> Tensor:
        """float32 [head_dim / 4], radians a patch along either axis.

        Raises:
            ModelError: Another rotary embedding, or heads that two axes of pairs do not divide.
        """
        has_rope = self._config.raw("rope_parameters")
        rope = self._config.section("rope_parameters") if has_rope else Section({})
        rope.choice("rope_type", ("axial",), "axial")
        theta = rope.number("rope_theta", _DEFAULT_THETA)
        rope.finish()
        if head_dim % 4:
            raise ModelError(
                "vision_config",
                expected="heads of a multiple of 4, which two axes of pairs divide",
                given=f"heads {head_dim} wide",
                fix="see the supported models",
            )
        return axial_frequencies(head_dim, theta)

    def eps(self, key: str) -> float:
        """A small positive number of the configuration."""
        return self._config.number(key)

    def heads(self, key: str, width: int) -> int:
        """Number of attention heads; divides the width.

        Raises:
            ModelError: It does not.
        """
        heads = self.number(key)
        self._config.expect(width % heads == 0, key, f"a divisor of {width}", heads)
        return heads

    def finish(self, irrelevant: Collection[str]) -> None:
        """Refuses a setting that nobody has read; see ``models.config.Section.finish``."""
        self._config.finish(irrelevant)

    def norm(self, name: str, width: int, eps: float) -> Norm:
        """A layer norm by the name of its module."""
        weight, bias = (self.reader.take(f"{name}.{part}", (width,)).float() for part in ("weight", "bias"))
        return Norm(weight, bias, eps)

    def affine(self, names: Sequence[str], width: int, in_features: int) -> Affine:
        """Linears that read the same rows as one, by the names of their modules, ``width`` outputs each."""
        weights = [self.reader.take(f"{name}.weight", (width, in_features)) for name in names]
        biases = [self.reader.take(f"{name}.bias", (width,)) for name in names]
        return Affine(torch.cat(weights), torch.cat(biases))

    def patch_embedding(self, name: str, width: int, patch: Sequence[int]) -> Affine:
        """A convolution whose steps do not overlap, as the linear that it is.

        Args:
            name: Of the module.
            width: Of the tower.
            patch: Channels, frames if there are any, rows and columns.
        """
        weight = self.reader.take(f"{name}.weight", (width, *patch)).reshape(width, -1)
        return Affine(weight, self.reader.take(f"{name}.bias", (width,)))


def axial_frequencies(head_dim: int, theta: float) -> Tensor:
    """float32 [head_dim / 4], as ``compute_axial_rope_parameters`` of both families rounds them."""
    half = head_dim // 2
    exponents = torch.arange(0, half, 2, dtype=torch.float32) / half
    return 1.0 / (theta**exponents)
