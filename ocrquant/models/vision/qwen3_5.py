"""The vision tower of Qwen3.5-VL from a checkpoint.

Knows names and shapes of its tensors; ``transformers.models.qwen3_5.modeling_qwen3_5``,
``Qwen3_5VisionModel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocrquant.models.spec import VisionSpec
from ocrquant.models.vision.encoder import Block, Encoder, Merger
from ocrquant.models.vision.reading import VisionReader
from ocrquant.models.vision.tables import GridTables
from ocrquant.models.vision.tower import VisionTower
from ocrquant.models.weights import WeightReader

__all__ = ["qwen3_5_tower"]

PREFIX = "model.visual"
IRRELEVANT = ("tokens_per_second",)
"""Read for videos alone."""
EPS = 1e-6
"""Fixed in the code of the family."""
DEFAULTS: Mapping[str, Any] = {
    "depth": 27,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "in_channels": 3,
    "intermediate_size": 4304,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 3584,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def qwen3_5_tower(config: Mapping[str, Any], reader: WeightReader, prefix: str = PREFIX) -> VisionTower:
    """Builds the tower.

    Args:
        config: ``config.json``.
        reader: The checkpoint.
        prefix: Name of the module.

    Raises:
        ModelError: A tensor is missing or of another shape; a setting that the tower does not know.
    """
    parts = VisionReader(reader, config["vision_config"], DEFAULTS)
    width, inner = parts.number("hidden_size"), parts.number("intermediate_size")
    heads = parts.heads("num_heads", width)
    side, frames, merge = (
        parts.number(k) for k in ("patch_size", "temporal_patch_size", "spatial_merge_size")
    )
    blocks = []
    for index in range(parts.number("depth")):
        name = f"{prefix}.blocks.{index}"
        blocks.append(
            Block(
                norm1=parts.norm(f"{name}.norm1", width, EPS),
                qkv=parts.affine([f"{name}.attn.qkv"], 3 * width, width),
                proj=parts.affine([f"{name}.attn.proj"], width, width),
                norm2=parts.norm(f"{name}.norm2", width, EPS),
                fc1=parts.affine([f"{name}.mlp.linear_fc1"], inner, width),
                fc2=parts.affine([f"{name}.mlp.linear_fc2"], width, inner),
            )
        )
    patch = (parts.number("in_channels"), frames, side, side)
    embedding = parts.patch_embedding(f"{prefix}.patch_embed.proj", width, patch)
    learned = reader.take(f"{prefix}.pos_embed.weight", (parts.number("num_position_embeddings"), width))
    merged = width * merge**2
    tower = VisionTower(
        spec=VisionSpec(patch_size=side, temporal_patch_size=frames, merge_size=merge),
        encoder=Encoder(embedding, blocks, heads, parts.gelu()),
        last_norm=None,
        merger=Merger(
            norm=parts.norm(f"{prefix}.merger.norm", width, EPS),
            fc1=parts.affine([f"{prefix}.merger.linear_fc1"], merged, merged),
            fc2=parts.affine([f"{prefix}.merger.linear_fc2"], parts.number("out_hidden_size"), merged),
        ),
        tables=GridTables(learned, parts.frequencies(width // heads), merge, in_blocks=True),
    )
    parts.finish(IRRELEVANT)
    return tower
