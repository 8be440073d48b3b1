"""Plans that ModelOpt's AutoQuantize gives for the groups, formats and pages of a run.

ModelOpt counts the bits of every linear and convolution, those that it may not quantize included. Its own
setting for layers that do not count takes them out of both sides, so that a budget means here what it means
to our solver: bits a weight over the searched groups. Linears that our map puts into one group share a
format, by a rule before ModelOpt's own ones, which on the models that we know say the same.

Three things are changed so that it runs, and works, on a CPU: see `modelopt_cpu` for the first; the model is
in float32, in which small divergences do not drown; and the loss is scaled, since its linear program takes
differences below its tolerance for none. Logits and losses are those of answer tokens alone: ModelOpt's own
script judges image placeholders and padding as well, which would only make its plans worse.

Knows ModelOpt's search. Does not know what a plan costs when somebody else measures it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from ocrquant.adapters import DocumentModel, Encoded
from ocrquant.errors import ModelError
from ocrquant.formats import FORMATS, Precision
from ocrquant.toolkits.missing import load_toolkit
from ocrquant.toolkits.modelopt_cpu import block_quantizer_on_cpu

__all__ = ["METHODS", "AutoQuantized", "Method", "auto_quantize"]

Method = Literal["gradient", "kl_div"]

METHODS: tuple[Method, ...] = ("gradient", "kl_div")

LOSS_SCALE = 100.0
"""Factor on the summed loss. Scores are its square, and CBC's tolerance is absolute."""

_FORMAT_NAMES = {Precision.NVFP4: "NVFP4_DEFAULT_CFG", Precision.FP8: "FP8_PER_CHANNEL_PER_TOKEN_CFG"}
"""ModelOpt's names of our formats: FP8 with a scale a channel and one a token."""


@dataclass(frozen=True, slots=True)
class AutoQuantized:
    """What ModelOpt found.

    Attributes:
        method: How it scored.
        plans: Budget in bits a weight -> format by group.
        bits: Budget -> bits a weight of the plan, which the KL method does not always keep.
        scores: Group -> ModelOpt's score of each format, as its solver sees them.
        cpu_seconds: Process time of calibration and scoring.
    """

    method: Method
    plans: Mapping[float, Mapping[str, Precision]]
    bits: Mapping[float, float]
    scores: Mapping[str, Mapping[Precision, float]]
    cpu_seconds: float


def auto_quantize(
    document: DocumentModel,
    batches: Sequence[Encoded],
    formats: Sequence[Precision],
    budgets: Sequence[float],
    method: Method,
) -> AutoQuantized:
    """Runs ModelOpt's search once and solves it for every budget.

    Args:
        document: The model, which is of no use afterwards: ModelOpt rebuilds it.
        batches: Pages with their answers; they calibrate and score.
        formats: Formats that compete with bf16.
        budgets: Bits a weight over all groups of the map.
        method: ``gradient`` or ``kl_div``.

    Raises:
        RecipeError: ModelOpt is not installed.
        ModelError: It groups linears otherwise than our map does.
    """
    mtq = load_toolkit("modelopt.torch.quantization", "nvidia-modelopt", "ModelOpt's search")
    algorithms = load_toolkit(
        "modelopt.torch.quantization.algorithms", "nvidia-modelopt", "ModelOpt's search"
    )
    owners = _owners(document)
    others = [
        name
        for name, module in document.model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) and name not in owners
    ]
    begin = time.process_time()
    with block_quantizer_on_cpu(), _grouping(algorithms, owners):
        _, state = mtq.auto_quantize(
            document.model,
            constraints={
                "effective_bits": max(budgets),
                "cost": {"excluded_module_name_patterns": others},
            },
            quantization_formats=[getattr(mtq, _FORMAT_NAMES[precision]) for precision in formats],
            data_loader=list(batches),
            forward_step=_answer_logits,
            loss_func=_scaled_loss if method == "gradient" else None,
            disabled_layers=others,
            num_calib_steps=len(batches),
            num_score_steps=len(batches),
            method=method,
        )
    seconds = time.process_time() - begin
    stats = _by_group(state["candidate_stats"], owners)
    plans = {budget: _plan(algorithms, state, owners, budget) for budget in budgets}
    return AutoQuantized(
        method=method,
        plans=plans,
        bits={budget: plan_bits(document, plan) for budget, plan in plans.items()},
        scores={
            group: {_precision(f): float(s) for f, s in zip(stat["formats"], stat["scores"], strict=True)}
            for group, stat in stats.items()
        },
        cpu_seconds=seconds,
    )


def plan_bits(document: DocumentModel, plan: Mapping[str, Precision]) -> float:
    """Bits a weight of a plan over its groups, block scales counted, scales of tensors and channels not."""
    weights = {group.name: group.num_weights for group in document.map.groups}
    total = sum(weights[name] * FORMATS[precision].bits_per_weight for name, precision in plan.items())
    return total / sum(weights[name] for name in plan)


def _owners(document: DocumentModel) -> dict[str, str]:
    """Module path of every searched linear -> its group."""
    return {
        document.map.module_path(linear.name): group.name
        for group in document.map.groups
        for linear in group.linears
    }


@contextmanager
def _grouping(algorithms: Any, owners: Mapping[str, str]) -> Iterator[None]:
    """Puts our groups before ModelOpt's rules."""
    searcher: Any = algorithms._AutoQuantizeBaseSearcher
    rules = searcher.quant_grouping_rules
    rule: Callable[[nn.Module, str], str | None] = lambda model, name: owners.get(name)  # noqa: E731
    searcher.quant_grouping_rules = [rule, *rules]
    try:
        yield
    finally:
        searcher.quant_grouping_rules = rules


def _answer_logits(model: nn.Module, batch: Encoded) -> Tensor:
    logits: Tensor = model(**batch.forward_inputs(), use_cache=False).logits
    return logits[batch.answer_mask]


def _scaled_loss(logits: Tensor, batch: Encoded) -> Tensor:
    labels = batch.labels[batch.answer_mask]
    return LOSS_SCALE * functional.cross_entropy(logits.float(), labels, reduction="sum")


def _by_group(stats: Mapping[str, Any], owners: Mapping[str, str]) -> dict[str, Any]:
    """ModelOpt's choices by our names of groups, those left out that it may not quantize."""
    found: dict[str, Any] = {}
    for stat in stats.values():
        groups = {owners.get(name) for name in stat["module_names"]} - {None}
        if not groups:
            continue
        (group,) = groups
        expected = {name for name, owner in owners.items() if owner == group}
        if set(stat["module_names"]) != expected:
            raise ModelError(
                f"ModelOpt's group of {group}",
                expected=sorted(expected),
                given=sorted(stat["module_names"]),
                fix="report the model",
            )
        found[str(group)] = stat
    if missing := sorted(set(owners.values()) - set(found)):
        raise ModelError(
            f"group {missing[0]}", expected="a choice of ModelOpt", given="none", fix="report it"
        )
    return found


def _plan(
    algorithms: Any, state: Mapping[str, Any], owners: Mapping[str, str], budget: float
) -> dict[str, Precision]:
    """ModelOpt's plan for another budget from the same scores, by its own solver."""
    solved = algorithms._resolve_best_recipe(state, {"effective_bits": budget})
    by_group = {id(stat): group for group, stat in _by_group(state["candidate_stats"], owners).items()}
    return {
        by_group[id(stat)]: _precision(solved[name])
        for name, stat in state["candidate_stats"].items()
        if id(stat) in by_group
    }


def _precision(recipe: Any) -> Precision:
    text = str(recipe)
    return next((p for p, name in _FORMAT_NAMES.items() if text.startswith(name)), Precision.BF16)
