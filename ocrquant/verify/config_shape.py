"""The types of the fields that are read of a quantization configuration, whoever wrote it.

Knows which fields these are; other fields may be anything. What their values mean is judged elsewhere.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ocrquant.errors import ModelError

__all__ = ["check_shape"]


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Arguments(_Fields):
    num_bits: int | None = None
    type: str | None = None
    strategy: str | None = None
    group_size: int | None = None
    dynamic: bool | Literal["local"] | None = None
    symmetric: bool | None = None
    block_structure: list[int] | str | None = None


class _Sparsity(_Fields):
    format: str | None = None
    targets: list[str] | None = None


class _Group(_Fields):
    targets: list[str] | None = None
    weights: _Arguments | None = None
    input_activations: _Arguments | None = None


class _Configuration(_Fields):
    config_groups: dict[str, _Group] | None = None
    quantized_layers: dict[str, dict[str, Any]] | None = None
    sparsity_config: _Sparsity | None = None
    kv_cache_scheme: _Arguments | None = None
    ignored: list[str] | None = Field(default=None, alias="ignore")
    exclude_modules: list[str] | None = None


def check_shape(place: str, said: object) -> None:
    """Refuses a configuration that no reader can make sense of.

    Args:
        place: Where it is written, for the message.
        said: ``quantization_config``, or ``quantization`` of ``hf_quant_config.json``.

    Raises:
        ModelError: A field has another type than the formats give it.
    """
    try:
        _Configuration.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise ModelError(
            f"{field} in {place}", expected=first["msg"], given=repr(first["input"]), fix="export it again"
        ) from None
