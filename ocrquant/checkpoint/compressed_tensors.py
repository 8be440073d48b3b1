"""compressed-tensors 0.19 (vLLM, SGLang, transformers): its tensors and its ``quantization_config``.

FP8: E4M3 weights scaled by output channel, activations scaled by token on the fly. NVFP4: weights and
activations in blocks of 16, the global scale of activations calibrated, their block scales on the fly. Knows
the library's own records. Does not know where the numbers come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    preset_name_to_scheme,
)
from pydantic import ValidationError

from ocrquant.checkpoint.file_format import (
    INPUT_SCALE_NAME,
    KV_SCALE_NAMES,
    Configuration,
    FileFormat,
    StoredPart,
)
from ocrquant.checkpoint.patterns import LinearNames, matches
from ocrquant.errors import ModelError
from ocrquant.formats import FORMATS, Precision

__all__ = ["COMPRESSED_TENSORS"]

_VERSION = "0.19.0"
_BLOCK = FORMATS[Precision.NVFP4].width_multiple
_PRESETS = {Precision.FP8: "FP8_DYNAMIC", Precision.NVFP4: "NVFP4"}
_FORMATS = {
    Precision.FP8: CompressionFormat.float_quantized,
    Precision.NVFP4: CompressionFormat.nvfp4_pack_quantized,
}
_KNOWN_KEYS = frozenset({*QuantizationConfig.model_fields, "sparsity_config", "transform_config", "version"})
_CLASS_TARGETS = frozenset({"Linear"})
"""Targets that mean every linear of a model, whatever its name."""
_BITS = {4: Precision.NVFP4, 8: Precision.FP8}
# What a reader needs to agree on; the rest of a scheme tells how it was calibrated.
_MATERIAL = ("num_bits", "type", "strategy", "group_size", "symmetric", "dynamic")


def describe(names: LinearNames, *, kv_cache: bool) -> Configuration | None:
    """What ``config.json`` says of a plan; None where it quantizes neither a linear nor the cache.

    One precision gives a file of that format, two give ``mixed-precision``, a quantized cache alone gives
    ``dense``. Targets and ``ignore`` name every linear by patterns; there is no target that catches all.

    Args:
        names: All linears and their precisions.
        kv_cache: Whether the checkpoint holds scales of an FP8 cache.

    Raises:
        ModelError: The names of two linears that are treated differently cannot be told apart.
    """
    names.check()
    schemes = []
    for precision, preset in _PRESETS.items():
        if targets := names.targets(precision):
            scheme = preset_name_to_scheme(preset, targets)
            scheme.format = _FORMATS[precision].value
            schemes.append(scheme)
    if not schemes and not kv_cache:
        return None
    formats = [scheme.format for scheme in schemes] or [CompressionFormat.dense.value]
    config = QuantizationConfig(
        config_groups={f"group_{number}": scheme for number, scheme in enumerate(schemes)},
        format=formats[0] if len(formats) == 1 else CompressionFormat.mixed_precision.value,
        quantization_status=QuantizationStatus.COMPRESSED,
        kv_cache_scheme=_kv_scheme() if kv_cache else None,
        ignore=names.ignored(),
    )
    data: dict[str, Any] = config.model_dump(mode="json")
    data |= {"sparsity_config": {}, "transform_config": {}, "version": _VERSION}
    return Configuration(quantization_config=data, files={})


def check(data: Mapping[str, Any], _files: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
    """Refuses a ``quantization_config`` with a scheme that this package does not compute.

    Args:
        data: Value of the key.
        _files: Other files; this format has none.

    Raises:
        ModelError: It is malformed, or one of its schemes is another one.
    """
    try:
        config = QuantizationConfig.model_validate(dict(data))
    except (ValidationError, ValueError, NotImplementedError) as error:
        raise _foreign("malformed", error) from error
    if config.quant_method != "compressed-tensors":
        raise _foreign("quant_method", config.quant_method)
    if config.quantization_status is not QuantizationStatus.COMPRESSED:
        raise _foreign("quantization_status", config.quantization_status.value)
    for key in ("sparsity_config", "transform_config", *(set(data) - _KNOWN_KEYS)):
        # Sparse weights are stored otherwise, and transforms turn the rows before they are quantized.
        if data.get(key):
            raise _foreign(key, data[key])
    known = {_key(preset_name_to_scheme(preset, [])): _FORMATS[p].value for p, preset in _PRESETS.items()}
    for name, scheme in config.config_groups.items():
        if _key(scheme) not in known:
            weights, inputs = _args_key(scheme.weights), _args_key(scheme.input_activations)
            raise _foreign(f"scheme {name}", f"weights {weights}, inputs {inputs}")
        if scheme.format not in (None, known[_key(scheme)]):
            raise _foreign(f"format of scheme {name}", scheme.format)
    _check_patterns([*config.ignore, *(t for s in config.config_groups.values() for t in s.targets)])
    if config.kv_cache_scheme is not None and _args_key(config.kv_cache_scheme) != _args_key(_kv_scheme()):
        raise _foreign("kv_cache_scheme", _args_key(config.kv_cache_scheme))


def declared(data: Mapping[str, Any], linear: str) -> tuple[Precision | None, bool]:
    """Precision of a linear by a ``quantization_config``, and whether only a class name says so."""
    if matches(linear, data.get("ignore") or ()):
        return None, False
    groups = (data.get("config_groups") or {}).values()
    for group in groups:
        if matches(linear, group["targets"]):
            return _BITS[group["weights"]["num_bits"]], False
    for group in groups:
        if _CLASS_TARGETS & set(group["targets"]):
            return _BITS[group["weights"]["num_bits"]], True
    return None, False


def _check_patterns(patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except re.error as error:
            raise _foreign(f"pattern {pattern}", error) from error


def _kv_scheme() -> Any:
    return QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False)


def _key(scheme: QuantizationScheme) -> tuple[object, ...]:
    return tuple(
        _args_key(args) for args in (scheme.weights, scheme.input_activations, scheme.output_activations)
    )


def _args_key(args: QuantizationArgs | None) -> tuple[object, ...] | None:
    return None if args is None else tuple(str(getattr(args, field)) for field in _MATERIAL)


def _foreign(what: str, given: object) -> ModelError:
    return ModelError(
        f"quantization_config: {what}",
        expected="FP8 by channel and token, or NVFP4 with calibrated inputs",
        given=given,
        fix="export the model with this package",
    )


COMPRESSED_TENSORS = FileFormat(
    name="compressed-tensors",
    parts={
        Precision.FP8: (
            StoredPart(name="weight", part="weight", dtype="F8_E4M3", shape=lambda out, width: (out, width)),
            StoredPart(name="weight_scale", part="weight_scale", dtype="F32", shape=lambda out, _: (out, 1)),
        ),
        Precision.NVFP4: (
            StoredPart(
                name="weight_packed",
                part="weight_packed",
                dtype="U8",
                shape=lambda out, width: (out, width // 2),
            ),
            StoredPart(
                name="weight_scale",
                part="weight_scale",
                dtype="F8_E4M3",
                shape=lambda out, width: (out, width // _BLOCK),
            ),
            StoredPart(
                name="weight_global_scale", part="weight_global_scale", dtype="F32", shape=lambda *_: (1,)
            ),
            StoredPart(name=INPUT_SCALE_NAME, part=INPUT_SCALE_NAME, dtype="F32", shape=lambda *_: (1,)),
        ),
    },
    kv_names=KV_SCALE_NAMES,
    kv_shape=(1,),
    describe=describe,
    check=check,
    declared=declared,
)
"""FP8 scales [out, 1] multiply, both global scales of NVFP4 divide, cache scales are on the attention."""
