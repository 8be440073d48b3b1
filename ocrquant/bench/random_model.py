"""A text model of Qwen3.5-0.8B shape with random weights, for `transformers` and for the engine.

The shape is that of the published model's decoder (24 layers, three of four Gated DeltaNet, hidden 1024,
vocabulary 248320, embedding and head tied). Weights are made once and shared. Knows how plans deal
precisions: linears that are merged get one precision, FP8 where the budget allows more than NVFP4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from ocrquant.bench.weights import INPUT_AMAX, quantize_weight, random_weight
from ocrquant.engine.config import EngineConfig
from ocrquant.engine.cuda_device import open_device
from ocrquant.engine.drafting import DraftSource
from ocrquant.engine.engine import Engine
from ocrquant.engine.memory import resident_bytes
from ocrquant.engine.runner import ModelRunner
from ocrquant.engine.state import NativePool, ReplayPool
from ocrquant.formats import FORMATS, Precision, nvfp4
from ocrquant.formats.weights import QuantizedWeight
from ocrquant.models.registry import build_model
from ocrquant.models.weights import MappingSource
from ocrquant.models.workspace import Workspace

__all__ = [
    "PUBLISHED",
    "LoadedModel",
    "RandomModel",
    "deal_precisions",
    "make_model",
    "random_tensor",
    "text_shapes",
]

PUBLISHED: Mapping[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248320,
}
"""Sizes of the decoder of Qwen3.5-0.8B."""

_ROPE = {
    "rope_type": "default",
    "rope_theta": 10_000_000.0,
    "partial_rotary_factor": 0.25,
    "mrope_interleaved": True,
    "mrope_section": [11, 11, 10],
}
_OURS, _THEIRS = "model.language_model.", "model."
_HEAD = "lm_head"
_GROUPS = {
    "qkvz": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    "out": ("linear_attn.out_proj",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Linears of a layer that share a precision."""


@dataclass(frozen=True, slots=True, eq=False)
class RandomModel:
    """Weights and configuration.

    Attributes:
        text_config: For `transformers`.
        tensors: bf16 by the names of a checkpoint with a vision side; the head is the embedding.
    """

    text_config: Qwen3_5TextConfig
    tensors: dict[str, Tensor]

    @property
    def num_parameters(self) -> int:
        """Numbers in it, the shared weight counted once."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def config(self, *, tied: bool) -> dict[str, Any]:
        """``config.json`` for the runtime."""
        text = {**self.text_config.to_dict(), "tie_word_embeddings": tied}
        architectures = ["Qwen3_5ForConditionalGeneration"]
        return {"architectures": architectures, "tie_word_embeddings": tied, "text_config": text}

    def for_transformers(self) -> Any:
        """The model of `transformers` on the same memory."""
        with torch.device("meta"):
            model = Qwen3_5ForCausalLM(self.text_config).to(torch.bfloat16)
        named = {name.replace(_OURS, _THEIRS, 1): tensor for name, tensor in self.tensors.items()}
        named[f"{_HEAD}.weight"] = named[f"{_THEIRS}embed_tokens.weight"]
        model.load_state_dict(named, assign=True)
        # Buffers that no checkpoint has were made without memory.
        model.model.rotary_emb = type(model.model.rotary_emb)(config=self.text_config)
        return model.eval().requires_grad_(False)

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Linears by the group that shares a precision, in the order of the layers."""
        found = {}
        for layer in range(self.text_config.num_hidden_layers):
            prefix = f"{_OURS}layers.{layer}."
            for group, members in _GROUPS.items():
                if f"{prefix}{members[0]}.weight" in self.tensors:
                    found[f"layers.{layer}.{group}"] = tuple(prefix + member for member in members)
        return found

    def group_sizes(self) -> dict[str, int]:
        """Weights of each group."""
        return {
            name: sum(self.tensors[f"{linear}.weight"].numel() for linear in linears)
            for name, linears in self.groups().items()
        }


def text_shapes(sizes: Mapping[str, Any]) -> tuple[Qwen3_5TextConfig, dict[str, torch.Size]]:
    """Configuration of a text model, and the shapes of its tensors under the names of a checkpoint.

    Every 4th layer has full attention; the head shares the weight of the embedding.

    Args:
        sizes: Keys of the text configuration.
    """
    kinds = [
        "full_attention" if (layer + 1) % 4 == 0 else "linear_attention"
        for layer in range(sizes["num_hidden_layers"])
    ]
    rope = {**_ROPE, "mrope_section": _sections(int(sizes["head_dim"] * _ROPE["partial_rotary_factor"]))}
    config = Qwen3_5TextConfig(
        **sizes, layer_types=kinds, rope_parameters=rope, tie_word_embeddings=True, pad_token_id=0
    )
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Qwen3_5ForCausalLM(config).state_dict().items()}
    return config, {
        name.replace(_THEIRS, _OURS, 1): shape for name, shape in shapes.items() if not name.startswith(_HEAD)
    }


def make_model(
    sizes: Mapping[str, Any] = PUBLISHED, seed: int = 0, device: torch.device | str = "cpu"
) -> RandomModel:
    """Random weights for a text model; every 4th layer has full attention.

    Args:
        sizes: Keys of the text configuration.
        seed: Of the weights.
        device: Where they are made.
    """
    config, shapes = text_shapes(sizes)
    generator = torch.Generator(device).manual_seed(seed)
    tensors = {name: random_tensor(name, shape, generator) for name, shape in shapes.items()}
    return RandomModel(config, tensors)


def _sections(rotary_dim: int) -> list[int]:
    """Rotary frequencies by axis, as evenly as the published ones."""
    half = rotary_dim // 2
    side = half // 3
    return [half - 2 * side - (half - 3 * side) // 2, side + (half - 3 * side) // 2, side]


def random_tensor(name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """A bf16 tensor of a checkpoint, by what its name says it is, where the generator is."""
    place = generator.device
    if name.endswith("linear_attn.norm.weight"):
        return torch.ones(shape, dtype=torch.bfloat16, device=place)
    if "norm" in name:
        # These multiply by 1 + w.
        return torch.zeros(shape, dtype=torch.bfloat16, device=place)
    if name.endswith("A_log"):
        return torch.empty(shape, device=place).uniform_(1, 16, generator=generator).log_().bfloat16()
    if name.endswith("dt_bias"):
        return torch.ones(shape, dtype=torch.bfloat16, device=place)
    if name.endswith("conv1d.weight"):
        return torch.randn(shape, generator=generator, device=place).mul_(0.5).bfloat16()
    return random_weight(shape, generator)


def deal_precisions(sizes: Mapping[str, int], bits_per_weight: float) -> dict[str, Precision]:
    """NVFP4 or FP8 for each group so that their mean comes as close to a budget as whole groups allow.

    Groups take FP8 in an order that spreads them over the layers.

    Args:
        sizes: Weights of each group.
        bits_per_weight: Budget, 4.5 to 8.
    """
    low, high = (FORMATS[p].bits_per_weight for p in (Precision.NVFP4, Precision.FP8))
    room = (bits_per_weight - low) / (high - low) * sum(sizes.values())
    dealt = dict.fromkeys(sizes, Precision.NVFP4)
    golden = (math.sqrt(5) - 1) / 2
    for _, name in sorted((number * golden % 1, name) for number, name in enumerate(sizes)):
        if sizes[name] <= room:
            dealt[name] = Precision.FP8
            room -= sizes[name]
    return dealt


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """An engine with a random model.

    Attributes:
        engine: Takes prompts of text.
        stored_bytes: Its weights as a checkpoint holds them.
        weight_bytes: Its weights in memory.
        read_bytes: Weights that one token reads: all but the table of embeddings.
    """

    engine: Engine
    stored_bytes: int
    weight_bytes: int
    read_bytes: int


def load_random(
    model: RandomModel,
    max_requests: int,
    max_positions: int,
    plan: Mapping[str, Precision] | None = None,
    head: Precision = Precision.BF16,
    *,
    device: torch.device | str = "cpu",
    drafts: DraftSource | None = None,
    window: int = 1,
    captured: bool = True,
) -> LoadedModel:
    """An engine for a random model.

    Args:
        model: Its weights.
        max_requests: Most requests at once.
        max_positions: Longest sequence.
        plan: Precision of each group; None leaves all in bf16.
        head: Precision of the output head; unless it is bf16 the head is a weight of its own.
        device: Where it runs.
        drafts: Guesses of what comes next.
        window: Most rows of a request in a step.
        captured: Whether steps are captured on a GPU.
    """
    tensors, quantized, scales = dict(model.tensors), dict[str, QuantizedWeight](), dict[str, Tensor]()
    chosen = {
        linear: precision for name, precision in (plan or {}).items() for linear in model.groups()[name]
    }
    sources = {linear: tensors.pop(f"{linear}.weight") for linear in chosen}
    if head is not Precision.BF16:
        chosen[_HEAD], sources[_HEAD] = head, tensors[f"{_OURS}embed_tokens.weight"]
    for linear, precision in chosen.items():
        quantized[linear] = quantize_weight(sources[linear], precision)
        if precision is Precision.NVFP4:
            scales[linear] = nvfp4.global_encode_scale(torch.tensor([INPUT_AMAX]))
    source = MappingSource(tensors, quantized, scales)
    place, rows = torch.device(device), max(512, max_requests * window)
    config = model.config(tied=head is Precision.BF16)
    decoder = build_model(config, source, torch.bfloat16, place, max_rows=rows)
    spec = decoder.spec
    assert spec.state is not None, "three of four layers have one"
    engine_config = EngineConfig(
        max_positions=max_positions,
        num_pages=max_requests * -(-max_positions // 16),
        position_axes=spec.position_axes,
        max_requests=max_requests,
        max_step_tokens=rows,
        max_window=window,
    )
    slots = engine_config.state_rows
    # On a GPU guesses are undone by records: nothing else there does so without the host.
    pool = ReplayPool if window > 1 else NativePool
    state = pool(spec.state, num_slots=slots, max_rows=rows, window=window, device=place)
    opened = open_device(place, torch.bfloat16)
    opened.can_capture = opened.can_capture and captured
    runner = ModelRunner(decoder, engine_config, opened, state)
    runner.capture_all()
    stored = [*tensors.values(), *quantized.values(), *scales.values()]
    table = 0 if head is Precision.BF16 else tensors[f"{_OURS}embed_tokens.weight"].nbytes
    weight_bytes = resident_bytes(decoder, but=(Workspace,))
    return LoadedModel(
        engine=Engine(engine_config, runner, (), drafts=drafts),
        stored_bytes=sum(one.nbytes for one in stored),
        weight_bytes=weight_bytes,
        read_bytes=weight_bytes - table,
    )
