"""The unified format of ModelOpt 0.47 (TensorRT-LLM, vLLM, SGLang): its tensors and both configurations.

What ``hf_quant_config.json`` says is said again in ``config.json``, in other words; readers take either, so
both are written from one description. FP8 is ``FP8_PER_CHANNEL_PER_TOKEN``: a scale an output channel, and
activations scaled by token on the fly. Plain ``FP8`` would mean one scale a tensor and static activations,
which is another weight. Knows ``modelopt.torch.export`` (quant_utils, convert_hf_config); imports none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from ocrquant.checkpoint.file_format import INPUT_SCALE_NAME, Configuration, FileFormat, StoredPart
from ocrquant.checkpoint.patterns import LinearNames
from ocrquant.errors import ModelError
from ocrquant.formats import FORMATS, Precision
from ocrquant.formats.nvfp4 import from_modelopt, to_modelopt

__all__ = ["MODELOPT"]

FILE_NAME = "hf_quant_config.json"
_MIXED = "MIXED_PRECISION"
EXPERTS = "experts"
_BLOCK = FORMATS[Precision.NVFP4].width_multiple

# TensorRT-LLM knows the format by this name, and reads the shape of the file that belongs to it.
_PRODUCER = {"name": "modelopt", "version": "0.47.0"}

_LAYERS: Mapping[Precision, Mapping[str, Any]] = {
    Precision.FP8: {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
    Precision.NVFP4: {"quant_algo": "NVFP4", "group_size": _BLOCK},
}
_ALGORITHMS = {str(layer["quant_algo"]): precision for precision, layer in _LAYERS.items()}

# What ModelOpt writes into `config_groups`; it says "dynamic": False of inputs that are scaled by token, too.
_FLOAT8 = {"dynamic": False, "num_bits": 8, "type": "float"}
_FLOAT4 = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": _BLOCK}
_GROUPS: Mapping[Precision, Mapping[str, Any]] = {
    Precision.FP8: {"input_activations": _FLOAT8, "weights": {**_FLOAT8, "strategy": "channel"}},
    Precision.NVFP4: {"input_activations": _FLOAT4, "weights": _FLOAT4},
}


def describe(names: LinearNames, *, kv_cache: bool) -> Configuration | None:
    """Both configurations of a plan; None where it quantizes neither a linear nor the cache.

    Two precisions give ``MIXED_PRECISION`` with a list of the quantized linears (and of experts that are none
    beside a shared expert that is), one gives its algorithm and a list of all others.

    Args:
        names: All linears and their precisions.
        kv_cache: Whether the checkpoint holds scales of an FP8 cache.

    Raises:
        ModelError: The names of two linears that are treated differently cannot be told apart.
    """
    used = [precision for precision in _LAYERS if precision in names.precisions.values()]
    if not used and not kv_cache:
        return None
    quantization: dict[str, Any] = {"quant_algo": None, "kv_cache_quant_algo": "FP8" if kv_cache else None}
    if len(used) > 1:
        layers = {n: dict(_LAYERS[p]) for n, p in names.precisions.items() if p is not Precision.BF16}
        quantization |= {"quant_algo": _MIXED, "quantized_layers": layers}
        if kept := _kept_experts(names.precisions):
            quantization["exclude_modules"] = kept
    elif used:
        excluded = _excluded(names)
        _check_excluded(names, excluded)
        quantization |= {**_LAYERS[used[0]], "exclude_modules": excluded}
    return Configuration(
        quantization_config=_flat(quantization),
        files={FILE_NAME: {"producer": _PRODUCER, "quantization": quantization}},
    )


def _flat(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """What ``config.json`` says, as ModelOpt's ``convert_hf_quant_config_format`` derives it."""
    algorithm = quantization["quant_algo"]
    layers: Mapping[str, Mapping[str, Any]] = quantization.get("quantized_layers", {})
    flat: dict[str, Any] = {}
    if algorithm == _MIXED:
        groups = []
        for precision, layer in _LAYERS.items():
            targets = sorted(name for name, given in layers.items() if given == layer)
            groups.append({**_GROUPS[precision], "targets": targets})
        flat["config_groups"] = {f"group_{number}": group for number, group in enumerate(groups)}
        flat["quantized_layers"] = layers
    elif algorithm == "NVFP4":
        flat["config_groups"] = {"group_0": {**_GROUPS[Precision.NVFP4], "targets": ["Linear"]}}
    flat["ignore"] = quantization.get("exclude_modules", [])
    if algorithm:
        flat["quant_algo"] = algorithm
    if quantization["kv_cache_quant_algo"]:
        flat["kv_cache_scheme"] = dict(_FLOAT8)
    return flat | {"producer": dict(_PRODUCER), "quant_method": "modelopt"}


def _kept_experts(precisions: Mapping[str, Precision]) -> list[str]:
    """Modules of experts in bf16 beside a quantized linear of the same MLP.

    ModelOpt lists no exceptions in a mixed file, where what is not listed stays as it is. But vLLM 0.32 takes
    experts that are not listed for whatever their shared expert is (`_resolve_quant_algo` of modelopt.py).
    """
    experts: dict[str, set[Precision]] = {}
    for name, precision in precisions.items():
        module, found, _ = name.partition(f".{EXPERTS}.")
        if found:
            experts.setdefault(module, set()).add(precision)
    quantized = [name for name, precision in precisions.items() if precision is not Precision.BF16]
    return [
        f"{module}.{EXPERTS}*"
        for module, kinds in sorted(experts.items())
        if kinds == {Precision.BF16} and any(name.startswith(f"{module}.") for name in quantized)
    ]


def _excluded(names: LinearNames) -> list[str]:
    """Linears of the decoder by name, all else by the module that holds it."""
    kept = (name for name, precision in names.precisions.items() if precision is Precision.BF16)
    return sorted({*kept, *(f"{root}*" for root in names.roots())})


def is_excluded(name: str, patterns: Iterable[str]) -> bool:
    """Whether a linear is left alone, by the rule of vLLM (`ModelOptQuantConfigBase.is_layer_excluded`).

    A wildcard behind a module stands for the module and what is in it, and every entry also for any name that
    it is a part of.
    """
    for pattern in patterns:
        module = pattern.removesuffix("*")
        if module in name or fnmatchcase(name, pattern):
            return True
    return False


def _check_excluded(names: LinearNames, excluded: Iterable[str]) -> None:
    expected = {**dict.fromkeys(names.untouched, Precision.BF16), **names.precisions}
    for name, precision in expected.items():
        if is_excluded(name, excluded) is not (precision is Precision.BF16):
            found = next((pattern for pattern in excluded if is_excluded(name, [pattern])), "none")
            raise ModelError(
                name,
                expected=f"a name that tells {precision} linears from all others",
                given=f"one that the pattern {found} of {FILE_NAME} matches",
                fix="keep this group and those of the same names in bf16",
            )


def check(data: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
    """Refuses what this package does not compute.

    Args:
        data: Value of ``quantization_config``.
        files: ``hf_quant_config.json`` where it is there.

    Raises:
        ModelError: It is malformed, one of its algorithms is another one, or the two contradict each other.
    """
    if data.get("quant_method") != "modelopt":
        raise _foreign("quant_method", data.get("quant_method"))
    layers = data.get("quantized_layers") or {}
    if not isinstance(layers, Mapping) or not all(isinstance(layer, Mapping) for layer in layers.values()):
        raise _foreign("quantized_layers", "malformed")
    algorithms = {str(data.get("quant_algo"))} if data.get("quant_algo") != _MIXED else set()
    algorithms |= {str(layer.get("quant_algo")) for layer in layers.values()}
    for algorithm in sorted(algorithms - {"None"}):
        if algorithm not in _ALGORITHMS:
            raise _foreign("quant_algo", algorithm)
    if data.get("quant_algo") == _MIXED and not layers:
        raise _foreign("quantized_layers", "none")
    for layer in layers.values():
        if layer.get("group_size", _BLOCK) != _BLOCK:
            raise _foreign("group_size", layer["group_size"])
    if data.get("kv_cache_scheme") not in (None, _FLOAT8):
        raise _foreign("kv_cache_scheme", data["kv_cache_scheme"])
    if FILE_NAME in files:
        _check_agreement(data, files[FILE_NAME])


def _check_agreement(data: Mapping[str, Any], file: Mapping[str, Any]) -> None:
    """Some servers read one, some the other (sglang pull request 27906)."""
    quantization = file.get("quantization")
    said = quantization if isinstance(quantization, Mapping) else {}
    pairs = {
        "quant_algo": (said.get("quant_algo"), data.get("quant_algo")),
        "exclude_modules": (set(said.get("exclude_modules") or ()), set(data.get("ignore") or ())),
        "quantized_layers": (said.get("quantized_layers") or {}, data.get("quantized_layers") or {}),
        "kv_cache_quant_algo": (
            said.get("kv_cache_quant_algo"),
            "FP8" if data.get("kv_cache_scheme") else None,
        ),
    }
    for key, (there, here) in pairs.items():
        if there != here:
            raise ModelError(
                f"{key} in {FILE_NAME}",
                expected="what quantization_config in config.json says",
                given="something else",
                fix="export the model again",
            )


def declared(data: Mapping[str, Any], linear: str) -> tuple[Precision | None, bool]:
    """Precision of a linear by a ``quantization_config``, and whether only a rule for all linears says so."""
    if data.get("quant_algo") == _MIXED:
        layer = data["quantized_layers"].get(linear)
        return (None if layer is None else _ALGORITHMS[layer["quant_algo"]]), False
    if is_excluded(linear, data.get("ignore") or ()):
        return None, False
    return _ALGORITHMS.get(str(data.get("quant_algo"))), True


def _foreign(what: str, given: object) -> ModelError:
    return ModelError(
        f"quantization_config: {what}",
        expected=f"ModelOpt's {' or '.join(_ALGORITHMS)}, and an FP8 cache or none",
        given=given,
        fix="export the model with this package",
    )


MODELOPT = FileFormat(
    name="modelopt",
    parts={
        Precision.FP8: (
            StoredPart(name="weight", part="weight", dtype="F8_E4M3", shape=lambda out, width: (out, width)),
            StoredPart(
                name="weight_scale",
                part="weight_scale",
                dtype="F32",
                shape=lambda out, _: (out,),
                write=lambda scale: scale.reshape(-1),
                read=lambda scale: scale.reshape(-1, 1),
            ),
        ),
        Precision.NVFP4: (
            StoredPart(
                name="weight", part="weight_packed", dtype="U8", shape=lambda out, width: (out, width // 2)
            ),
            StoredPart(
                name="weight_scale",
                part="weight_scale",
                dtype="F8_E4M3",
                shape=lambda out, width: (out, width // _BLOCK),
            ),
            StoredPart(
                name="weight_scale_2",
                part="weight_global_scale",
                dtype="F32",
                shape=lambda *_: (),
                write=to_modelopt,
                read=from_modelopt,
            ),
            StoredPart(
                name="input_scale",
                part=INPUT_SCALE_NAME,
                dtype="F32",
                shape=lambda *_: (),
                write=to_modelopt,
                read=from_modelopt,
            ),
        ),
    },
    kv_names=("k_proj.k_scale", "v_proj.v_scale"),
    kv_shape=(),
    describe=describe,
    file_names=(FILE_NAME,),
    check=check,
    declared=declared,
)
"""FP8 scales [out] multiply, both global scales of NVFP4 multiply, cache scales are on the projections."""
