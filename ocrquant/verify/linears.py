"""The linears of a checkpoint: where each is in the model, what is declared of it and what is stored.

Knows the structure of known architectures from ``adapters``; of others it takes every matrix that no
embedding's name claims. Reads headers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ocrquant.adapters import ModelMap, TensorInfo, build_model_map
from ocrquant.errors import ModelError
from ocrquant.formats import Precision
from ocrquant.verify.declaration import Declaration, TargetRule
from ocrquant.verify.folder import CheckpointFolder
from ocrquant.verify.schemes import PART_NAMES

__all__ = ["CACHE_NAMES", "Linears", "Side", "StoredLinear", "read_linears"]

Side = Literal["decoder", "vision", "draft"]

CACHE_NAMES = ("k_scale", "v_scale", "q_scale")
_EMBEDDINGS = ("embed", "embedding", "pos_emb", "relative_position", "query", "latent", "token")
_VISION = ("visual", "vision", "image", "sam_model", "projector", "merger", "connector", "mlp_ar")
_DRAFTS = ("mtp.", "model.mtp.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLinear:
    """One linear.

    Attributes:
        name: Its module path in the checkpoint.
        side: Which part of the model it belongs to.
        rules: What the configuration declares; more than one only where it contradicts itself.
        stored: Precision of its codes; None for a plain weight.
        shape: ``(out, in)`` of its weight.
    """

    name: str
    side: Side
    rules: tuple[TargetRule, ...]
    stored: Precision | None
    shape: tuple[int, int]

    @property
    def declared(self) -> TargetRule | None:
        """The rule that counts, the first one."""
        return self.rules[0] if self.rules else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Linears:
    """All linears of a checkpoint.

    Attributes:
        items: By name.
        model_map: Structure of the model as it was before it was quantized; None where it is not known.
        reason: Why it is not.
    """

    items: Mapping[str, StoredLinear]
    model_map: ModelMap | None
    reason: str


def read_linears(folder: CheckpointFolder, declaration: Declaration | None) -> Linears:
    """The linears of a folder."""
    stored = _codes(folder)
    shapes = {name: _shape(folder, name, precision) for name, precision in stored.items()}
    for name, spec in folder.tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight" and module not in stored and len(spec.shape) == 2:
            shapes[module] = (spec.shape[0], spec.shape[1])
    for name, weight in folder.stacked.items():
        shapes.setdefault(name.removesuffix(".weight"), weight.shape)
    model_map, reason = _structure(folder, stored, shapes)
    names = _by_name(shapes) if model_map is None else _by_structure(model_map, shapes)
    names |= {name: _side(name) for name in stored if name not in names}
    return Linears(
        items={
            name: StoredLinear(
                name=name,
                side=side,
                rules=tuple(declaration.rules_of(name)) if declaration else (),
                stored=stored.get(name),
                shape=shapes[name],
            )
            for name, side in names.items()
        },
        model_map=model_map,
        reason=reason,
    )


def _codes(folder: CheckpointFolder) -> dict[str, Precision]:
    """Linears that are stored as codes, by their names and dtypes alone."""
    found = {}
    for name, spec in folder.tensors.items():
        module, _, part = name.rpartition(".")
        if len(spec.shape) != 2:
            continue
        if part == "weight_packed" or (part == "weight" and spec.dtype == "U8"):
            found[module] = Precision.NVFP4
        elif part == "weight" and spec.dtype.startswith("F8"):
            found[module] = Precision.FP8
    return found


def _shape(folder: CheckpointFolder, name: str, precision: Precision) -> tuple[int, int]:
    packed = folder.tensors.get(f"{name}.weight_packed") or folder.tensors[f"{name}.weight"]
    rows, columns = packed.shape
    return rows, columns * (2 if precision is Precision.NVFP4 else 1)


def _structure(
    folder: CheckpointFolder, stored: Mapping[str, Precision], shapes: Mapping[str, tuple[int, int]]
) -> tuple[ModelMap | None, str]:
    plain: dict[str, TensorInfo] = {}
    for name, spec in folder.tensors.items():
        module, _, part = name.rpartition(".")
        if part not in PART_NAMES and part not in CACHE_NAMES and not (part == "weight" and module in stored):
            plain[name] = TensorInfo(spec.dtype, spec.shape, "", spec.num_bytes)
    for name in stored:
        rows, columns = shapes[name]
        plain[f"{name}.weight"] = TensorInfo("BF16", (rows, columns), "", 2 * rows * columns)
    try:
        return build_model_map(folder.path, folder.config, dict(sorted(plain.items()))), ""
    except ModelError as error:
        return None, str(error)


def _by_structure(model_map: ModelMap, shapes: Mapping[str, tuple[int, int]]) -> dict[str, Side]:
    found: dict[str, Side] = {linear.name: "decoder" for linear in model_map.linears()}
    found |= dict.fromkeys(model_map.kept, "decoder")
    found |= dict.fromkeys(model_map.vision_linears, "vision")
    found |= {name.removesuffix(".weight"): "draft" for name in model_map.mtp if name.endswith(".weight")}
    return {name: side for name, side in found.items() if name in shapes}


def _by_name(shapes: Mapping[str, tuple[int, int]]) -> dict[str, Side]:
    leaves = {name: name.rpartition(".")[2].lower() for name in shapes}
    return {name: _side(name) for name in shapes if not any(word in leaves[name] for word in _EMBEDDINGS)}


def _side(name: str) -> Side:
    if name.startswith(_DRAFTS):
        return "draft"
    return "vision" if any(word in name.lower() for word in _VISION) else "decoder"
