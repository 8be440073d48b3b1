"""The names of a model's linears with what a plan does to each, for the configuration of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from ocrquant.adapters import ModelMap, vision_modules
from ocrquant.checkpoint import LinearNames
from ocrquant.formats import Precision

__all__ = ["linear_names", "planned_precisions"]


def planned_precisions(model_map: ModelMap, groups: Mapping[str, Precision]) -> dict[str, Precision]:
    """Precision of every linear of the decoder and its head, those that always stay bf16 included."""
    chosen = {linear.name: groups[group.name] for group in model_map.groups for linear in group.linears}
    return chosen | dict.fromkeys(model_map.kept, Precision.BF16)


def linear_names(model_map: ModelMap, precisions: Mapping[str, Precision]) -> LinearNames:
    """All linears of a model.

    Args:
        model_map: Its structure.
        precisions: Precision of every linear of the decoder and its head.
    """
    # Matrices alone: the norms of those heads are no linears, and only linears are looked up.
    mtp = {
        name.removesuffix(".weight")
        for name in model_map.mtp
        if name.endswith(".weight") and len(model_map.tensors[name].shape) == 2
    }
    return LinearNames(
        precisions={name: precisions[name] for name in _in_order(model_map)},
        block_prefix=model_map.block_prefix,
        untouched=(*model_map.vision_linears, *sorted(mtp)),
        renamed=[
            module
            for module in vision_modules(model_map.architecture)
            if not any(name.startswith(f"{module}.") for name in model_map.vision)
        ],
    )


def _in_order(model_map: ModelMap) -> list[str]:
    return [*(linear.name for linear in model_map.linears()), *model_map.kept]
