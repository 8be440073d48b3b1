"""How vLLM finds the scheme of a layer, as a table of models and the two rules of its quantization code.

A server builds its own modules, some of them fused out of several linears of the checkpoint, and asks the
configuration for each by its own name. Modelled after vLLM 0.32.0: ``compressed_tensors/utils.py``
(`should_ignore_layer`, `find_matched_target`), ``modelopt.py`` (`is_layer_excluded`, `_resolve_quant_algo`),
and of each model ``packed_modules_mapping`` and ``hf_to_vllm_mapper``. SGLang took over the same rules.
Knows names. Does not know what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType

from ocrquant.checkpoint.patterns import matches
from ocrquant.verify.declaration import CLASS_TARGETS, Declaration, TargetRule

__all__ = ["FUSED", "SERVED_MODELS", "ServedModel", "ServedModule", "ShardsDisagreeError", "served_rule"]

Packed = Mapping[str, tuple[str, ...]]

_ATTENTION: Packed = MappingProxyType({"qkv_proj": ("q_proj", "k_proj", "v_proj")})
_DENSE: Packed = MappingProxyType({**_ATTENTION, "gate_up_proj": ("gate_proj", "up_proj")})
_DELTA: Packed = MappingProxyType(
    {**_DENSE, "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"), "in_proj_ba": ("in_proj_b", "in_proj_a")}
)
FUSED: Packed = _DELTA
"""Linears of a checkpoint that servers run as one product, by the name of that product."""


class ShardsDisagreeError(Exception):
    """The parts of a fused layer are declared differently; the server refuses the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What a server makes of the names of one architecture.

    Attributes:
        prefixes: Beginnings of names in the checkpoint and what they become.
        decoder: Products of the decoder that are fused.
        vision: Products of the vision side that are fused.
        known_in_vision: Those of them that the matcher knows to be fused when it meets the vision side.
        known_in_decoder: The same for the decoder; all of `decoder` where left out.
    """

    prefixes: tuple[tuple[str, str], ...] = ()
    decoder: Packed = field(default_factory=lambda: _DENSE)
    vision: Packed = field(default_factory=dict)
    known_in_vision: Packed = field(default_factory=lambda: _DENSE)
    known_in_decoder: Packed | None = None

    def name(self, name: str) -> str:
        """A name of the checkpoint as the server has it."""
        for before, after in self.prefixes:
            if name.startswith(before):
                return after + name.removeprefix(before)
        return name

    def modules(self, names: Iterable[str], *, is_vision: bool) -> list[ServedModule]:
        """The modules that the server builds for linears of one side."""
        fused = self.vision if is_vision else self.decoder
        product_of = {shard: product for product, shards in fused.items() for shard in shards}
        shards: dict[str, list[str]] = {}
        for name in names:
            parent, dot, leaf = self.name(f"{name}.").removesuffix(".").rpartition(".")
            # Experts are stacked by another layer, which asks for each by its own name.
            is_expert = ".experts." in name
            shards.setdefault(parent + dot + (leaf if is_expert else product_of.get(leaf, leaf)), []).append(
                name
            )
        known = self.decoder if self.known_in_decoder is None else self.known_in_decoder
        packed = self.known_in_vision if is_vision else known
        return [ServedModule(name=name, shards=tuple(of), packed=packed) for name, of in shards.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModule:
    """One linear layer of the server.

    Attributes:
        name: Its name there.
        shards: The linears of the checkpoint that it is made of.
        packed: Fused products that the matcher knows of.
    """

    name: str
    shards: tuple[str, ...]
    packed: Packed

    @property
    def is_head(self) -> bool:
        """Whether it is the head, whose class is not named after a linear."""
        return self.name.rpartition(".")[2] == "lm_head"


_LANGUAGE = ("model.language_model.", "language_model.model.")
_HEAD = ("lm_head.", "language_model.lm_head.")
_QWEN = ServedModel(prefixes=(("model.visual.", "visual."), _HEAD, _LANGUAGE))
_TOWER = (
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)

SERVED_MODELS: Mapping[str, ServedModel] = MappingProxyType(
    {
        "Qwen3_5ForConditionalGeneration": ServedModel(prefixes=_QWEN.prefixes, decoder=_DELTA),
        "Qwen3_5MoeForConditionalGeneration": ServedModel(prefixes=_QWEN.prefixes, decoder=_DELTA),
        "Qwen3_5ForCausalLM": ServedModel(prefixes=(("model.language_model.", "model."),), decoder=_DELTA),
        "Qwen3VLForConditionalGeneration": _QWEN,
        # Dense layers among the sparse ones: their fused product is in no table when it is built.
        "Qwen3VLMoeForConditionalGeneration": ServedModel(
            prefixes=_QWEN.prefixes, known_in_decoder=_ATTENTION
        ),
        "Qwen2_5_VLForConditionalGeneration": ServedModel(
            prefixes=(_LANGUAGE, ("model.visual.", "visual."), _HEAD, ("model.", "language_model.model."))
        ),
        # Fused q, k and v on both sides, and no table of fused products before the decoder is built.
        "PaddleOCRVLForConditionalGeneration": ServedModel(
            prefixes=(("model.", "language_model.model."), _HEAD),
            vision=_ATTENTION,
            known_in_vision={},
        ),
        "GlmOcrForConditionalGeneration": ServedModel(
            prefixes=(_HEAD, _LANGUAGE, ("model.visual.", "visual.")), decoder=_ATTENTION
        ),
        "LightOnOCRForConditionalGeneration": ServedModel(
            prefixes=(
                ("model.vision_encoder.", "vision_tower."),
                ("model.vision_projection.", "multi_modal_projector."),
                _HEAD,
                _LANGUAGE,
            )
        ),
        "InternVLForConditionalGeneration": ServedModel(prefixes=(_HEAD, _LANGUAGE, *_TOWER)),
        "Idefics3ForConditionalGeneration": ServedModel(vision=_ATTENTION),
        "SmolVLMForConditionalGeneration": ServedModel(vision=_ATTENTION),
        "Qwen3ForCausalLM": ServedModel(),
        "LlamaForCausalLM": ServedModel(),
    }
)
"""Architectures by the name in ``config.json``; of vision sides only those whose layers are fused anew."""


def served_rule(
    declaration: Declaration, module: ServedModule, model: ServedModel, *, classes_first: bool = False
) -> TargetRule | None:
    """The rule that a server takes for one of its layers; None where it leaves it unquantized.

    Args:
        declaration: What the checkpoint says.
        module: The layer.
        model: What the server makes of names.
        classes_first: Whether classes of modules are looked up before the parts of fused layers, as vLLM did
            until 2026; 0.32.0 looks at the parts first.

    Raises:
        ShardsDisagreeError: The parts of a fused layer are declared differently.
    """
    if declaration.method == "modelopt":
        return _modelopt(declaration, module, model)
    return _compressed(declaration, module, model, classes_first=classes_first)


def _mapped(targets: Iterable[str], model: ServedModel) -> list[str]:
    """Paths follow the renaming; patterns and names of classes are taken as they are."""
    return [model.name(t) if "." in t and not t.startswith("re:") else t for t in targets]


def _parts(module: ServedModule) -> list[str]:
    """Names of the parts of a fused layer, as the matcher spells them out; its own name where it is not."""
    leaf = module.name.rpartition(".")[2]
    if leaf not in module.packed:
        return [module.name]
    return [module.name.replace(leaf, shard) for shard in module.packed[leaf]]


def _all_or_none(answers: Sequence[bool], module: ServedModule) -> bool:
    if len(set(answers)) > 1:
        raise ShardsDisagreeError(f"{', '.join(module.shards)}")
    return answers[0]


def _compressed(
    declaration: Declaration, module: ServedModule, model: ServedModel, *, classes_first: bool
) -> TargetRule | None:
    ignore = _mapped(declaration.ignore, model)
    parts = [module.name] if module.name in ignore else _parts(module)
    if _all_or_none([matches(part, ignore) for part in parts], module):
        return None
    rules = [(rule, _mapped(rule.targets, model)) for rule in declaration.rules]
    for rule, targets in rules:
        if matches(module.name, targets):
            return rule
    by_class = None
    if not module.is_head:
        by_class = next((rule for rule, targets in rules if CLASS_TARGETS & set(targets)), None)
    # All parts have to match; which rule each of them matches is not compared, and the first one counts.
    found = [next((rule for rule, targets in rules if matches(part, targets)), None) for part in parts]
    by_parts = found[0] if all(found) else None
    return by_class or by_parts if classes_first else by_parts or by_class


def _modelopt(declaration: Declaration, module: ServedModule, model: ServedModel) -> TargetRule | None:
    patterns = []
    for pattern in declaration.ignore:
        is_tree = len(pattern) > 1 and pattern.endswith("*") and not pattern.endswith(".*")
        patterns += [pattern[:-1], f"{pattern[:-1]}.*"] if is_tree else [pattern]
    patterns = _mapped(patterns, model)
    if _all_or_none([part in patterns for part in _parts(module)], module) or any(
        (p != module.name and (p in module.name or p in module.name.removeprefix("language_model.")))
        or fnmatchcase(module.name, p)
        for p in patterns
    ):
        return None
    if declaration.catches_all:
        return declaration.rules[0]
    # A list of layers may name the head without the module that holds it.
    names = ["lm_head", module.name] if module.is_head else _parts(module)
    rules = [
        next((rule for rule in declaration.rules if name in _mapped(rule.targets, model)), None)
        for name in names
    ]
    known = [rule for rule in rules if rule is not None]
    if len({rule.label for rule in known}) > 1:
        raise ShardsDisagreeError(", ".join(module.shards))
    return known[0] if known else _of_experts(declaration, module, model)


def _of_experts(declaration: Declaration, module: ServedModule, model: ServedModel) -> TargetRule | None:
    """Experts that no rule names follow the first linear that is listed below their MLP."""
    mlp, is_expert, _ = module.name.partition(".experts.")
    if not is_expert:
        return None
    for beginning in (f"{mlp}.experts.", f"{mlp}."):
        for rule in declaration.rules:
            if any(name.startswith(beginning) for name in _mapped(rule.targets, model)):
                return rule
    return None
