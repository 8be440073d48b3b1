"""A cautious guess at the structure of a model whose architecture is not in the table of families.

Concludes from shapes, never from a name alone: the decoder is the one list of layers that is as long and as
wide as the configuration says. Only projections that every decoder has are searched; whatever could go wrong
unseen (norms, caches, the head, other linears) stays as it is. Every conclusion is a sentence that `check`
prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocrquant.adapters.builder import build_map
from ocrquant.adapters.families import FAMILIES, Family
from ocrquant.adapters.parts import ATTENTION, FUSED_MLP, MLP, Layer, Part
from ocrquant.adapters.structure import ModelMap, TensorInfo
from ocrquant.errors import ModelError
from ocrquant.json_files import read_json

__all__ = ["guess_family", "guess_map"]

HEAD = "lm_head"
HEAD_REASON = "head of an architecture that is not known"
OTHER_REASON = "a linear of unknown purpose in an architecture that is not known"
_QUERY = re.compile(r"(.+)\.layers\.(\d+)\.self_attn\.q_proj\.weight")


def _refusal(what: str, expected: str, given: object) -> ModelError:
    return ModelError(what, expected=expected, given=given, fix="take a model of one of the known families")


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**config, **(config.get("text_config") or {})}


def _decoder(text: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> str:
    """The one module whose embedding and layers are as wide and as many as the configuration says."""
    blocks: dict[str, set[int]] = {}
    for name, tensor in tensors.items():
        found = _QUERY.fullmatch(name)
        if found and tensor.shape[-1] == text["hidden_size"]:
            blocks.setdefault(found[1], set()).add(int(found[2]))
    wanted = set(range(int(text["num_hidden_layers"])))
    fitting = [
        prefix
        for prefix, numbers in blocks.items()
        if numbers == wanted
        and f"{prefix}.embed_tokens.weight" in tensors
        and tensors[f"{prefix}.embed_tokens.weight"].shape == (text["vocab_size"], text["hidden_size"])
    ]
    if len(fitting) != 1:
        expected = f"one decoder of {len(wanted)} layers with self_attn.q_proj behind an embedding"
        raise _refusal("structure of the model", expected, ", ".join(fitting) or "none")
    return fitting[0]


def _layer(prefix: str, tensors: Mapping[str, TensorInfo]) -> Layer:
    """The projections of the first layer, with no norm that anything could be folded into."""
    mlp = FUSED_MLP if f"{prefix}.layers.0.mlp.gate_up_proj.weight" in tensors else MLP
    parts = tuple(Part(part.kind, part.members) for part in (*ATTENTION.parts, *mlp.parts))
    return Layer(parts, (), caches=False)


def guess_family(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], folder: Path) -> Family:
    """A row as of the table, for one folder.

    Args:
        config: `config.json`.
        tensors: All tensors of the checkpoint.
        folder: With the settings of the image processor, whose class says how images become tokens.

    Raises:
        ModelError: Something has no answer, or more than one.
        KeyError: The configuration lacks a key.
    """
    text = _text(config)
    decoder = _decoder(text, tensors)
    kind = _image_processor(folder)
    like = next((f for f in FAMILIES.values() if kind == f.image_processor.partition(":")[2]), None)
    if like is None:
        known = sorted({f.image_processor.partition(":")[2].removesuffix("Pil") for f in FAMILIES.values()})
        raise _refusal("image processor", f"one of {', '.join(known)}", kind.removesuffix("Pil"))
    layer, count = _layer(decoder, tensors), int(text["num_hidden_layers"])
    inside = (f"{decoder}.", HEAD)
    roots = {_root(name, decoder) for name in tensors if not name.startswith(inside)}
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return Family(
        layers=lambda text: [layer] * count,
        vision=tuple(sorted(roots)),
        decoder=decoder,
        head=HEAD,
        flat=True,
        images=like.images,
        image_processor=like.image_processor,
        grid_positions="mrope_section" in rope,
    )


def _image_processor(folder: Path) -> str:
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            settings = read_json(folder / name)
            settings = settings.get("image_processor", settings)
            kind = str(settings.get("image_processor_type", "none"))
            return kind.removesuffix("Fast").removesuffix("Pil") + "Pil"
    raise _refusal("image processor", "its settings", "none")


def _root(name: str, decoder: str) -> str:
    """The shortest prefix of a tensor's module that does not lead to the decoder too."""
    steps = name.split(".")[:-1]
    for end in range(1, len(steps)):
        prefix = ".".join(steps[:end])
        if not f"{decoder}.".startswith(f"{prefix}."):
            return prefix
    return ".".join(steps)


def guess_map(
    architecture: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], folder: Path
) -> ModelMap:
    """The map of a model of an unknown architecture, with what it rests on in `guesses`.

    Raises:
        ModelError: See `guess_family`.
    """
    family = guess_family(config, tensors, folder)
    found = build_map(architecture, family, config, tensors)
    others = [
        name.removesuffix(".weight")
        for name in found.other
        if name.startswith(f"{found.block_prefix}.")
        and name.endswith(".weight")
        and len(found.tensors[name].shape) == 2
    ]
    kept = dict.fromkeys(others, OTHER_REASON)
    kept |= {HEAD: HEAD_REASON} if not found.tied_head else {}
    guesses = (
        f"{family.decoder} is the decoder: {found.num_blocks} layers of the width that config.json states",
        "its layers are those modules of transformers that have the names of the tensors",
        f"everything outside of it is vision: {', '.join(family.vision)}",
        f"images become tokens as {family.image_processor.partition(':')[2].removesuffix('Pil')} makes them,"
        f" with positions {'in a grid' if family.grid_positions else 'one after another'}",
        "q, k and v run as one product, and so do gate and up",
        "no norm is smoothed, keys and values stay bf16, and so does the head",
        f"{len(others)} further linears of the layers stay bf16",
    )
    return replace(
        found,
        groups=tuple(group for group in found.groups if group.block is not None),
        kept={**found.kept, **kept},
        norm_folds=(),
        guesses=guesses,
    )
