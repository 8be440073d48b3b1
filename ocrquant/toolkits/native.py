"""Plans in the words of other toolkits: a recipe for llm-compressor, a quantization config for ModelOpt.

The linears of a plan are named one by one, or for llm-compressor by patterns, as our own checkpoints name
them; what a plan leaves in bf16, and everything that it does not mention, stays as it is. Knows names and
formats. Runs no toolkit: what it writes, they read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import yaml

from ocrquant.formats import Precision
from ocrquant.formats.precision import NVFP4_BLOCK_SIZE

__all__ = ["Toolkit", "llm_compressor_recipe", "modelopt_config", "modelopt_recipe", "native_recipe"]

Toolkit = Literal["llm-compressor", "modelopt"]

_BLOCK: dict[str, Any] = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group"}

_SCHEMES: Mapping[Precision, Mapping[str, Mapping[str, Any]]] = {
    Precision.FP8: {
        "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
        "input_activations": {
            "num_bits": 8,
            "type": "float",
            "symmetric": True,
            "strategy": "token",
            "dynamic": True,
        },
    },
    Precision.NVFP4: {
        "weights": {
            **_BLOCK,
            "group_size": NVFP4_BLOCK_SIZE,
            "dynamic": False,
            "scale_dtype": "torch.float8_e4m3fn",
            "zp_dtype": "torch.float8_e4m3fn",
        },
        "input_activations": {
            **_BLOCK,
            "group_size": NVFP4_BLOCK_SIZE,
            "dynamic": "local",
            "scale_dtype": "torch.float8_e4m3fn",
            "zp_dtype": "torch.float8_e4m3fn",
        },
    },
}
"""Quantization arguments of compressed-tensors: those of its schemes NVFP4 and FP8_DYNAMIC."""

_BLOCKS = {-1: NVFP4_BLOCK_SIZE, "type": "dynamic", "scale_bits": (4, 3)}

_QUANTIZERS: Mapping[Precision, Mapping[str, Mapping[str, Any]]] = {
    Precision.FP8: {
        "weight_quantizer": {"num_bits": (4, 3), "axis": 0},
        "input_quantizer": {"num_bits": (4, 3), "type": "dynamic", "block_sizes": {-1: None}},
    },
    Precision.NVFP4: {
        "weight_quantizer": {"num_bits": (2, 1), "block_sizes": _BLOCKS},
        "input_quantizer": {"num_bits": (2, 1), "block_sizes": _BLOCKS},
    },
}
"""Quantizer attributes of ModelOpt: those of its presets nvfp4 and fp8_per_channel_per_token."""


def native_recipe(toolkit: Toolkit, plan: Mapping[str, Precision]) -> str:
    """A plan as a file that another toolkit reads.

    Args:
        toolkit: Which one.
        plan: Format by linear, named as modules in memory are.
    """
    return llm_compressor_recipe(plan) if toolkit == "llm-compressor" else modelopt_recipe(plan)


def llm_compressor_recipe(plan: Mapping[str, Precision]) -> str:
    """YAML that llm-compressor's ``oneshot(recipe=...)`` runs.

    Args:
        plan: Format by linear.
    """
    groups = {
        f"group_{number}": {"targets": _patterns(plan, precision), **_SCHEMES[precision]}
        for number, precision in enumerate(p for p in _SCHEMES if p in plan.values())
    }
    ignored = _patterns(plan, Precision.BF16)
    modifier = {"config_groups": groups, "ignore": ignored}
    return _yaml({"quant_stage": {"quant_modifiers": {"QuantizationModifier": modifier}}})


def modelopt_config(plan: Mapping[str, Precision]) -> dict[str, Any]:
    """What ModelOpt's ``mtq.quantize`` takes as ``config``: the last entry that matches a quantizer counts.

    Args:
        plan: Format by linear.
    """
    entries: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    for linear, precision in plan.items():
        for quantizer, attributes in _QUANTIZERS.get(precision, {}).items():
            entries.append({"quantizer_name": f"{linear}.{quantizer}", "cfg": dict(attributes)})
    return {"quant_cfg": entries, "algorithm": "max"}


def modelopt_recipe(plan: Mapping[str, Precision]) -> str:
    """YAML that ``modelopt.recipe.load_recipe`` reads; its ``quantize`` is what ``mtq.quantize`` takes.

    Args:
        plan: Format by linear.
    """
    metadata = {"recipe_type": "ptq", "description": "Formats of an ocrquant plan, linear by linear."}
    return _yaml({"metadata": metadata, "quantize": _plain(modelopt_config(plan))})


def _patterns(plan: Mapping[str, Precision], precision: Precision) -> list[str]:
    """Patterns for the linears of a format, one for those that differ in the number of their block alone."""
    blocks: dict[tuple[str, str], list[str]] = {}
    for name, given in plan.items():
        if given is precision:
            found = re.fullmatch(r"(.*?\.)(\d+)(\..*)", name)
            before, number, after = found.groups() if found else (name, "", "")
            blocks.setdefault((before, after), []).append(number)
    return [
        f"re:^{re.escape(before)}{_one_of(numbers)}{re.escape(after)}$"
        for (before, after), numbers in blocks.items()
    ]


def _one_of(numbers: Sequence[str]) -> str:
    return numbers[0] if len(numbers) == 1 else f"({'|'.join(numbers)})"


def _plain(value: Any) -> Any:
    """Tuples as lists, which YAML has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


class _Dumper(yaml.SafeDumper):
    """Writes what occurs twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=1 << 16)
