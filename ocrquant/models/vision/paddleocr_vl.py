"""The vision tower and the projector of PaddleOCR-VL from a checkpoint.

Knows names and shapes of their tensors, both those of the published checkpoint and those of a model saved by
module; ``transformers.models.paddleocr_vl.modeling_paddleocr_vl``, ``PaddleOCRVisionModel`` and
``PaddleOCRProjector``.
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

__all__ = ["paddleocr_vl_tower"]

NAMES = (("visual.vision_model", "mlp_AR"), ("model.visual.vision_model", "model.projector"))
"""Tower and projector as published, and as the modules are called."""
PROJECTOR_EPS = 1e-5
"""Fixed in the code of the family."""
IRRELEVANT = ("temporal_patch_size", "tokens_per_second")
"""Read for videos alone: an image is one frame."""
UNUSED = {
    "head": "pooling head of the tower's own training; no token passes through it",
    "embeddings.packing_position_embedding": "positions of packed training batches; resampled ones are used",
}
DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "image_size": 384,
    "intermediate_size": 4304,
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "spatial_merge_size": 2,
}


def paddleocr_vl_tower(config: Mapping[str, Any], reader: WeightReader, out_features: int) -> VisionTower:
    """Builds tower and projector.

    Args:
        config: ``config.json``.
        reader: The checkpoint.
        out_features: Width of the decoder.

    Raises:
        ModelError: A tensor is missing or of another shape; a setting that the tower does not know.
    """
    vision = config["vision_config"]
    parts = VisionReader(reader, vision, DEFAULTS)
    prefix, projector = next(
        (names for names in NAMES if reader.has(f"{names[0]}.post_layernorm.weight")), NAMES[0]
    )
    width, inner = parts.number("hidden_size"), parts.number("intermediate_size")
    heads = parts.heads("num_attention_heads", width)
    side, merge = parts.number("patch_size"), parts.number("spatial_merge_size")
    eps = parts.eps("layer_norm_eps")
    blocks = []
    for index in range(parts.number("num_hidden_layers")):
        name = f"{prefix}.encoder.layers.{index}"
        qkv = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        blocks.append(
            Block(
                norm1=parts.norm(f"{name}.layer_norm1", width, eps),
                qkv=parts.affine(qkv, width, width),
                proj=parts.affine([f"{name}.self_attn.out_proj"], width, width),
                norm2=parts.norm(f"{name}.layer_norm2", width, eps),
                fc1=parts.affine([f"{name}.mlp.fc1"], inner, width),
                fc2=parts.affine([f"{name}.mlp.fc2"], width, inner),
            )
        )
    patch = (parts.number("num_channels"), side, side)
    embedding = parts.patch_embedding(f"{prefix}.embeddings.patch_embedding", width, patch)
    positions = (parts.number("image_size") // side) ** 2
    learned = reader.take(f"{prefix}.embeddings.position_embedding.weight", (positions, width))
    for name, reason in UNUSED.items():
        reader.ignore(f"{prefix}.{name}", reason)
    merged = width * merge**2
    tower = VisionTower(
        spec=VisionSpec(patch_size=side, temporal_patch_size=1, merge_size=merge),
        encoder=Encoder(embedding, blocks, heads, parts.gelu()),
        last_norm=parts.norm(f"{prefix}.post_layernorm", width, eps),
        merger=Merger(
            norm=parts.norm(f"{projector}.pre_norm", width, PROJECTOR_EPS),
            fc1=parts.affine([f"{projector}.linear_1"], merged, merged),
            fc2=parts.affine([f"{projector}.linear_2"], out_features, merged),
        ),
        tables=GridTables(learned, parts.frequencies(width // heads), merge, in_blocks=False),
    )
    parts.finish(IRRELEVANT)
    return tower
