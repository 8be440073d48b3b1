"""Qwen3.5 vision-language models, dense (``Qwen3_5ForConditionalGeneration``).

Three of four layers are Gated DeltaNet, the others full attention with an output gate, norms of heads and
partial rotary positions whose axes are dealt out in turn. Norms multiply by 1 + w. Follows
``transformers.models.qwen3_5``; heads of multi-token prediction are left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ocrquant.models.build import Build
from ocrquant.models.config import Section
from ocrquant.models.decoder import NORMED, Decoder, DecoderLayer, Mixer
from ocrquant.models.families.reading import IRRELEVANT_OUTER, axis_sections, rope_section, vision_parts
from ocrquant.models.layers.attention import Attention
from ocrquant.models.layers.gated_delta_net import GatedDeltaNet
from ocrquant.models.layers.head import Head, embedding_and_head
from ocrquant.models.layers.mlp import Mlp
from ocrquant.models.layers.norm import RmsNorm
from ocrquant.models.layers.rotary import Rotary, interleaved_axes, inverse_frequencies
from ocrquant.models.spec import AttentionSpec, ModelSpec, StateSpec
from ocrquant.models.vision import qwen3_5_tower

__all__ = ["ARCHITECTURE", "build"]

ARCHITECTURE = "Qwen3_5ForConditionalGeneration"

TEXT = "model.language_model"
MTP = "mtp"

_LINEAR, _FULL = "linear_attention", "full_attention"
_CONV_TAPS = 4
_ROTARY_PART = 0.25  # the family's default, which files have beside another one in rope_parameters

_IRRELEVANT = (
    "full_attention_interval",  # layer_types, where it is given, says all
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
)
_OF_LINEAR = (
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
)
"""Keys that say nothing where no layer is linear attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    kinds: list[str]
    eps: float
    inner: int
    bias: bool


def build(config: Section, build: Build) -> Decoder:
    """The model of a configuration.

    Args:
        config: ``config.json``.
        build: Checkpoint and workspace.

    Raises:
        ModelError: The configuration asks for what is not computed here, or the tensors do not match it.
    """
    text = config.section("text_config")
    text.require("hidden_act", "silu", "silu")
    text.require("attn_output_gate", True, True)
    text.require("output_gate_type", "swish", "swish")
    text.require("mamba_ssm_dtype", "float32", "float32")
    kinds = _layer_kinds(text)
    # All settings before the first tensor: what is not computed here is refused at once.
    settings = _Settings(
        kinds=kinds,
        eps=text.number("rms_norm_eps", 1e-6),
        inner=text.integer("intermediate_size"),
        bias=text.flag("attention_bias", False),
    )
    # transformers reads the outer key, vLLM that of the text side: either one makes the weight shared.
    tied = any([section.flag("tie_word_embeddings", False) for section in (config, text)])
    spec = _spec(text, kinds)
    rotary = _rotary(text, build, spec.attention.head_dim)
    text.finish(_IRRELEVANT if _LINEAR in kinds else (*_IRRELEVANT, *_OF_LINEAR))
    config.finish(IRRELEVANT_OUTER)
    vision, image_token_id = vision_parts(config, build.reader, qwen3_5_tower)
    if vision is not None:
        spec = replace(spec, vision=vision.spec, image_token_id=image_token_id)
    build.reader.ignore(MTP, "heads of multi-token prediction draft tokens; the model's answers need none")
    layers = [_layer(settings, build, spec, rotary, number) for number in range(len(kinds))]
    embedding = f"{TEXT}.embed_tokens"
    table, product = embedding_and_head(build, embedding, spec.vocab, spec.hidden, tied=tied)
    head = Head(build, f"{TEXT}.norm", spec.hidden, settings.eps, "unit", product)
    return Decoder(
        spec,
        build,
        table=table,
        rotary=rotary,
        layers=layers,
        head=head,
        vision=vision,
        kv_scales=build.reader.kv_scales(
            f"{TEXT}.layers.{number}.self_attn" for number, kind in enumerate(kinds) if kind == _FULL
        ),
    )


def _layer_kinds(text: Section) -> list[str]:
    count = text.integer("num_hidden_layers")
    if text.data.get("layer_types"):
        kinds = text.words("layer_types", (_LINEAR, _FULL))
        text.expect(len(kinds) == count, "layer_types", f"{count} layers", len(kinds))
        return kinds
    every = text.integer("full_attention_interval", 4)
    return [_FULL if (number + 1) % every == 0 else _LINEAR for number in range(count)]


def _spec(text: Section, kinds: list[str]) -> ModelSpec:
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    text.expect(heads % kv_heads == 0, "num_key_value_heads", f"a divisor of {heads}", kv_heads)
    state = None
    if _LINEAR in kinds:
        text.require("linear_conv_kernel_dim", _CONV_TAPS, _CONV_TAPS)
        state = StateSpec(
            num_layers=kinds.count(_LINEAR),
            key_heads=text.integer("linear_num_key_heads"),
            value_heads=text.integer("linear_num_value_heads"),
            key_dim=text.integer("linear_key_head_dim"),
            value_dim=text.integer("linear_value_head_dim"),
            conv_taps=_CONV_TAPS,
        )
        divides = state.value_heads % state.key_heads == 0
        expected = f"a divisor of {state.value_heads}"
        text.expect(divides, "linear_num_key_heads", expected, state.key_heads)
    return ModelSpec(
        architecture=ARCHITECTURE,
        hidden=text.integer("hidden_size"),
        vocab=text.integer("vocab_size"),
        max_positions=text.integer("max_position_embeddings"),
        position_axes=3,
        attention=AttentionSpec(
            num_layers=kinds.count(_FULL),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=text.integer("head_dim"),
        ),
        state=state,
        vision=None,
        image_token_id=None,
    )


def _rotary(text: Section, build: Build, head_dim: int) -> Rotary:
    rope, theta = rope_section(text)
    rope.require("mrope_interleaved", True, True)
    beside = text.number("partial_rotary_factor", _ROTARY_PART)
    factor = rope.number("partial_rotary_factor", beside)
    expected = f"{factor}, as in the rotary settings, or none"
    text.expect(beside in (_ROTARY_PART, factor), "partial_rotary_factor", expected, beside)
    axes = interleaved_axes(axis_sections(rope, [11, 11, 10]))
    rope.finish()
    return Rotary(build.workspace, inverse_frequencies(theta, int(head_dim * factor)), axes)


def _layer(settings: _Settings, build: Build, spec: ModelSpec, rotary: Rotary, number: int) -> DecoderLayer:
    prefix, product, eps = f"{TEXT}.layers.{number}", f"layers.{number}", settings.eps
    kind, hidden = settings.kinds[number], spec.hidden
    index = settings.kinds[:number].count(kind)

    def norm(name: str, width: int = hidden) -> RmsNorm:
        return RmsNorm(build.reader, f"{prefix}.{name}", width, eps, "unit")

    mixer: Mixer
    if kind == _FULL:
        width = spec.attention.head_dim
        attention = mixer = Attention(
            build.workspace,
            build.linears,
            f"{prefix}.self_attn",
            f"{product}.attention",
            index=index,
            spec=spec.attention,
            rotary=rotary,
            reads=NORMED,
            hidden=hidden,
            gated=True,
            norms=(norm("self_attn.q_norm", width), norm("self_attn.k_norm", width)),
            bias=settings.bias,
        )
        readers = [attention.qkv]
    else:
        assert spec.state is not None
        delta_net = mixer = GatedDeltaNet(
            build.reader,
            build.workspace,
            build.linears,
            f"{prefix}.linear_attn",
            f"{product}.gdn",
            index=index,
            spec=spec.state,
            reads=NORMED,
            hidden=hidden,
            eps=eps,
        )
        readers = [delta_net.qkvz, delta_net.ba]
    mlp = Mlp(
        build.workspace,
        build.linears,
        f"{prefix}.mlp",
        f"{product}.mlp",
        reads=NORMED,
        hidden=hidden,
        inner=settings.inner,
    )
    return DecoderLayer(
        input_norm=norm("input_layernorm"),
        mixer_input=build.linears.operand(NORMED, hidden, *readers),
        mixer=mixer,
        post_norm=norm("post_attention_layernorm"),
        mlp_input=build.linears.operand(NORMED, hidden, mlp.gate_up),
        mlp=mlp,
    )
