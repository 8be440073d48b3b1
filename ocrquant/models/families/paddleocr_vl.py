"""PaddleOCR-VL (``PaddleOCRVLForConditionalGeneration``): an ERNIE-4.5 decoder behind a NaViT-like tower.

All layers are plain attention without head norms and gates; the axes of rotary positions have a section each.
Norms round before they multiply by w. Follows ``transformers.models.paddleocr_vl``. Knows both the names of
published checkpoints and those of the modules of ``transformers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ocrquant.models.build import Build
from ocrquant.models.config import Section
from ocrquant.models.decoder import NORMED, Decoder, DecoderLayer
from ocrquant.models.families.reading import IRRELEVANT_OUTER, axis_sections, rope_section, vision_parts
from ocrquant.models.layers.attention import Attention
from ocrquant.models.layers.head import Head, embedding_and_head
from ocrquant.models.layers.mlp import Mlp
from ocrquant.models.layers.norm import RmsNorm
from ocrquant.models.layers.rotary import Rotary, contiguous_axes, inverse_frequencies
from ocrquant.models.spec import AttentionSpec, ModelSpec
from ocrquant.models.vision import VisionTower, paddleocr_vl_tower
from ocrquant.models.weights import WeightReader

__all__ = ["ARCHITECTURE", "build"]

ARCHITECTURE = "PaddleOCRVLForConditionalGeneration"

PREFIXES = ("model", "model.language_model")
"""Of the decoder, as published, and as the modules are called."""


_FIXED = {"compression_ratio": 1.0, "rope_is_neox_style": True, "use_3d_rope": True, "use_rmsnorm": True}
"""Settings of published files, with the one value that is computed."""

_IRRELEVANT = ("max_sequence_length", "weight_share_add_bias")
"""Of training; a head with a bias of its own would show among the tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    prefix: str
    eps: float
    inner: int
    bias: bool


def build(config: Section, build: Build) -> Decoder:
    """The model of a configuration.

    Args:
        config: ``config.json``; published ones have the keys of the text side at its top.
        build: Checkpoint and workspace.

    Raises:
        ModelError: The configuration asks for what is not computed here, or the tensors do not match it.
    """
    reader = build.reader
    text = config.section("text_config") if config.data.get("text_config") else config
    text.require("hidden_act", "silu", "silu")
    for key, value in _FIXED.items():
        text.require(key, value, value)
    # All settings before the first tensor: what is not computed here is refused at once.
    settings = _Settings(
        prefix=PREFIXES[reader.has(f"{PREFIXES[1]}.embed_tokens.weight")],
        eps=text.number("rms_norm_eps", 1e-5),
        inner=text.integer("intermediate_size"),
        bias=text.flag("use_bias", False),
    )
    tied = any([section.flag("tie_word_embeddings", True) for section in (config, text)])
    prefix, spec = settings.prefix, _spec(text)
    hidden, count = spec.hidden, spec.attention.num_layers
    rope, theta = rope_section(text)
    axes = contiguous_axes(axis_sections(rope, [16, 24, 24]))
    rope.require("partial_rotary_factor", 1.0, 1.0)
    rope.require("mrope_interleaved", False, False)
    rope.finish()
    if text is not config:
        text.finish(_IRRELEVANT)
    config.finish((*_IRRELEVANT, *IRRELEVANT_OUTER))
    rotary = Rotary(build.workspace, inverse_frequencies(theta, spec.attention.head_dim), axes)

    def tower(data: Mapping[str, Any], weights: WeightReader) -> VisionTower:
        return paddleocr_vl_tower(data, weights, hidden)

    vision, image_token_id = vision_parts(config, reader, tower)
    if vision is not None:
        spec = replace(spec, vision=vision.spec, image_token_id=image_token_id)
    layers = [_layer(settings, build, spec, rotary, number) for number in range(count)]
    embedding = f"{prefix}.embed_tokens"
    table, product = embedding_and_head(build, embedding, spec.vocab, hidden, tied=tied)
    return Decoder(
        spec,
        build,
        table=table,
        rotary=rotary,
        layers=layers,
        head=Head(build, f"{prefix}.norm", hidden, settings.eps, "scaled", product),
        vision=vision,
        kv_scales=reader.kv_scales(f"{prefix}.layers.{number}.self_attn" for number in range(count)),
    )


def _spec(text: Section) -> ModelSpec:
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    kv_heads = text.integer("num_key_value_heads", heads)
    text.expect(heads % kv_heads == 0, "num_key_value_heads", f"a divisor of {heads}", kv_heads)
    return ModelSpec(
        architecture=ARCHITECTURE,
        hidden=hidden,
        vocab=text.integer("vocab_size"),
        max_positions=text.integer("max_position_embeddings"),
        position_axes=3,
        attention=AttentionSpec(
            num_layers=text.integer("num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=text.integer("head_dim", hidden // heads),
        ),
        state=None,
        vision=None,
        image_token_id=None,
    )


def _layer(settings: _Settings, build: Build, spec: ModelSpec, rotary: Rotary, number: int) -> DecoderLayer:
    name, product, hidden = f"{settings.prefix}.layers.{number}", f"layers.{number}", spec.hidden

    def norm(member: str) -> RmsNorm:
        return RmsNorm(build.reader, f"{name}.{member}", hidden, settings.eps, "scaled")

    attention = Attention(
        build.workspace,
        build.linears,
        f"{name}.self_attn",
        f"{product}.attention",
        index=number,
        spec=spec.attention,
        rotary=rotary,
        reads=NORMED,
        hidden=hidden,
        gated=False,
        norms=None,
        bias=settings.bias,
    )
    mlp = Mlp(
        build.workspace,
        build.linears,
        f"{name}.mlp",
        f"{product}.mlp",
        reads=NORMED,
        hidden=hidden,
        inner=settings.inner,
        bias=settings.bias,
    )
    return DecoderLayer(
        input_norm=norm("input_layernorm"),
        mixer_input=build.linears.operand(NORMED, hidden, attention.qkv),
        mixer=attention,
        post_norm=norm("post_attention_layernorm"),
        mlp_input=build.linears.operand(NORMED, hidden, mlp.gate_up),
        mlp=mlp,
    )
