"""What another program computed, held against this package's simulation; needs no vLLM.

Three comparisons, from wide to sharp. Log-probabilities over the whole vocabulary and the greedy answer say
that the model as a whole is the one that was meant; but one code of an activation that rounds the other way
changes everything behind it, so that they agree only to within a part of what quantization itself does. Each
quantized linear alone, on the input that the other program gave it, agrees to the rounding of its output in
bf16: that shows a scale which is a few per cent off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.simulate import SimulatedLinear, simulated_output

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
"""Linears that vLLM keeps as one, with the parts in their order."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What two programs may differ by.

    Attributes:
        kl: KL divergence in nats a token; or
        kl_ratio: over that which the plan itself causes.
        mean_difference: Mean difference of log-probabilities.
    """

    kl: float
    kl_ratio: float
    mean_difference: float


LIMITS: Mapping[str, Limits] = {
    # Measured over twelve families: 1.7e-7 to 6.9e-7; bf16 itself is 2.6e-7 to 1.0e-6 from float32.
    # Positions that were not interleaved gave 6e-6 and 5e-5.
    "bf16": Limits(kl=2e-6, kl_ratio=0, mean_difference=0.005),
    # By vLLM 0.4 to 0.7 of what the plan causes. transformers computes in float32, so that more codes round
    # the other way: up to 1.13, for GLM-OCR, whose norms behind each part make small differences large again.
    "fp8": Limits(kl=5e-5, kl_ratio=1.5, mean_difference=0.12),
    "mixed": Limits(kl=0, kl_ratio=0.5, mean_difference=0.12),
    # The same: 0.41 to 0.67, and 1.03. The pipeline's rounding lessens what the plan causes, and no flips.
    "nvfp4": Limits(kl=0, kl_ratio=1.5, mean_difference=0.12),
}

LINEAR_ERROR = 0.03
"""Of each quantized linear on equal inputs. Measured: 0.002 to 0.006, which is rounding to bf16, and 0.016
where the scale of one block lies on the border of two codes.
"""
EXPERTS_ERROR = 0.08
"""Of all experts of a layer, where a code that rounds the other way reaches another product: 0.02 to 0.05."""

Tensors = Mapping[str, Tensor]


def error_limit(place: str) -> float:
    """What a quantized linear may differ by."""
    return EXPERTS_ERROR if ".experts." in place else LINEAR_ERROR


def mean_kl(reference: Tensor, given: Tensor) -> float:
    """KL divergence in nats a token of log-probabilities [T, vocabulary], the first being the truth."""
    reference, given = reference.double(), given.double()
    return float((reference.exp() * (reference - given)).sum(-1).mean())


def place(module: str) -> str:
    """A linear by its place in the decoder, which is called differently everywhere."""
    # Where vLLM runs a model of transformers, a shared expert hangs below those that are routed to.
    module = module.replace(".experts._shared_experts._layer.", ".")
    steps = module.split(".")
    if any(step.startswith(("vis", "mlp_AR", "projector")) for step in steps):
        return module
    return module[module.find("layers.") :] if "layers" in steps else steps[-1]


def parts_of(module: str, known: Sequence[str]) -> tuple[str, ...]:
    """The linears of the plan that a module of vLLM holds."""
    name = place(module)
    stem, _, last = name.rpartition(".")
    if name in known or last not in FUSED:
        return (name,)
    return tuple(f"{stem}.{part}" for part in FUSED[last])


def linear_errors(read: Tensors, prompt: str, linears: Mapping[str, SimulatedLinear]) -> dict[str, float]:
    """How far each linear's output was from ours on the same input, over the norm of ours; by its place.

    A linear that only one side quantizes has an infinite error.
    """
    ours = {place(name): linear for name, linear in linears.items()}
    begin = f"{prompt}.linear."
    modules = {name[len(begin) : -2] for name in read if name.startswith(begin)}
    errors = dict.fromkeys(ours, float("inf"))
    for module in sorted(modules):
        parts = parts_of(module, list(ours))
        if not set(parts) <= ours.keys():
            errors[place(module)] = float("inf")
            continue
        x, y = (read[f"{begin}{module}.{side}"].float() for side in "xy")
        wanted = [simulated_output(x, ours[part]) for part in parts]
        for part, want, got in zip(parts, wanted, y.split([w.shape[1] for w in wanted], dim=1), strict=True):
            errors[part] = float((got - want).norm() / want.norm())
    return errors | experts_errors(read, prompt, ours)


def experts_errors(read: Tensors, prompt: str, ours: Mapping[str, SimulatedLinear]) -> dict[str, float]:
    """The same for the experts of a layer together, with the router's choice of the other program."""
    begin = f"{prompt}.experts."
    modules = {name.removesuffix(".x") for name in read if name.startswith(begin) and name.endswith(".x")}
    errors: dict[str, float] = {}
    for module in sorted(modules):
        prefix = place(module.removeprefix(begin)).removesuffix(".routed_experts")
        known = [name for name in ours if name.startswith(f"{prefix}.")]
        if not known:
            errors[prefix] = float("inf")
            continue
        x, y, weights, ids = (read[f"{module}.{what}"] for what in ("x", "y", "weights", "ids"))
        want = experts_output(x, weights, ids, ours, prefix)
        errors |= dict.fromkeys(known, float((y.float() - want).norm() / want.norm()))
    return errors


def experts_output(
    x: Tensor, weights: Tensor, ids: Tensor, ours: Mapping[str, SimulatedLinear], prefix: str
) -> Tensor:
    """What the experts [T, hidden] float32 of a layer make of x [T, hidden], by their weights [T, k]."""
    found = torch.zeros_like(x, dtype=torch.float32)
    for expert in ids.unique().tolist():
        token, slot = torch.where(ids == expert)
        gate, up, down = (ours[f"{prefix}.{expert}.{part}_proj"] for part in ("gate", "up", "down"))
        states = x[token].float()
        # Servers hold what lies between two products in bf16.
        opened, passed = (simulated_output(states, linear).bfloat16() for linear in (gate, up))
        inner = (torch.nn.functional.silu(opened.float()) * passed.float()).bfloat16()
        y = simulated_output(inner.float(), down).bfloat16()
        found.index_add_(0, token, y.float() * weights[token, slot, None].float())
    return found


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One prompt of one checkpoint.

    Attributes:
        kl: Of the other program's log-probabilities to ours, nats a token.
        own_kl: Of bf16 to the plan, by ours: what the plan itself changes.
        max_difference: Of log-probabilities.
        mean_difference: Of log-probabilities.
        same_ids: Whether the tokens of the prompt are ours, those of the image among them.
        answer: ``equal``; ``tie at N``, where at the first other token our own choice was ahead by less than
            `max_difference`; else ``other at N``.
        worst_linear: Place of the quantized linear that is furthest beyond its limit, and its relative error.
    """

    kl: float
    own_kl: float
    max_difference: float
    mean_difference: float
    same_ids: bool
    answer: str
    worst_linear: tuple[str, float]


def compare(
    read: Tensors, expected: Tensors, plain: Tensors, prompt: str, linears: Mapping[str, SimulatedLinear]
) -> Comparison:
    """One prompt: what was read against the simulation of the plan and, for size, against bf16."""
    logprobs, given = expected[f"{prompt}.logprobs"], read[f"{prompt}.logprobs"]
    if given.shape != logprobs.shape:
        given = torch.full_like(logprobs, float("nan"))
    difference = (given - logprobs).abs()
    errors = linear_errors(read, prompt, linears)
    largest = float(difference.max())
    return Comparison(
        kl=mean_kl(logprobs, given),
        own_kl=mean_kl(logprobs, plain[f"{prompt}.logprobs"]),
        max_difference=largest,
        mean_difference=float(difference.mean()),
        same_ids=torch.equal(read[f"{prompt}.ids"], expected[f"{prompt}.ids"]),
        answer=answer_in_words(
            expected[f"{prompt}.answer"],
            read[f"{prompt}.answer"],
            expected[f"{prompt}.answer_logprobs"],
            largest,
        ),
        worst_linear=max(errors.items(), key=lambda item: item[1] / error_limit(item[0]), default=("", 0.0)),
    )


def answer_in_words(ours: Tensor, theirs: Tensor, logprobs: Tensor, noise: float) -> str:
    """Whether two greedy answers are the same, and whether a difference was a toss-up; see `Comparison`."""
    for step, (one, other) in enumerate(zip(ours.tolist(), theirs.tolist(), strict=False)):
        if one != other:
            margin = float(logprobs[step, one] - logprobs[step, other])
            return f"tie at {step}" if margin < noise else f"other at {step}"
    return "equal" if len(ours) == len(theirs) else f"other at {min(len(ours), len(theirs))}"


def faults(result: Comparison, plan: str, wider: float = 1.0) -> list[str]:
    """What is beyond the limits of a plan, in words; nothing where all is as it was meant.

    Args:
        result: The comparison.
        plan: Name of the plan.
        wider: What the limits of single linears are multiplied with.
    """
    limits = LIMITS[plan]
    checks = {
        "KL": result.kl < max(limits.kl, limits.kl_ratio * result.own_kl),
        "mean|dlogp|": result.mean_difference < limits.mean_difference,
        "linear": result.worst_linear[1] < wider * error_limit(result.worst_linear[0]),
        "tokens": result.same_ids,
        "answer": not result.answer.startswith("other"),
    }
    return [name for name, holds in checks.items() if not holds]
