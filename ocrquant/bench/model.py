"""Decoding with a random model of Qwen3.5-0.8B shape: `transformers` bf16, the engine in bf16 and mixed.

Only decoding is timed: from the first token of the answers to the last one. Answers have a fixed length; what
a random model says means nothing. The ceiling is the time to read every weight but the embedding's once a
token, at the bandwidth measured between the repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field

from ocrquant.bench.machine import READ_BYTES, ReadProbe
from ocrquant.bench.random_model import (
    PUBLISHED,
    LoadedModel,
    RandomModel,
    deal_precisions,
    load_random,
    make_model,
)
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.threads import use_threads
from ocrquant.bench.timing import interleave, median_interval, ratio
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.sampling import SamplingParams
from ocrquant.formats import FORMATS, Precision

__all__ = ["Settings", "run"]

_MIXED_GOAL, _BF16_GOAL, _MEMORY_GOAL = 3.0, 1.0, 0.05
_BASE, _BF16 = "transformers bf16", "engine bf16"

_NOTES = (
    "mixed plan: groups of linears in FP8 or NVFP4 at the stated budget; embedding, b and a of Gated "
    "DeltaNet, convolutions and norms in bf16",
    "a head in FP8 or NVFP4 is a weight of its own beside the bf16 embedding; an export of a tied model "
    "keeps the shared weight in bf16, which is the arm with a bf16 head",
    "transformers: Qwen3_5ForCausalLM.generate on the same weights, untouched modules, sdpa",
    "answers_equal: answers of the bf16 engine that are token for token those of transformers; random "
    "weights leave logits close together, so this is no measure of correctness",
)

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """Sizes of the run.

    Attributes:
        at_once: Numbers of requests at once.
        prompt_tokens: Length of each prompt.
        tokens: Tokens of each answer; the first one is not timed.
        bits_per_weight: Of the mixed plan's linears, the head not counted.
        heads: Precisions of the mixed plan's head, an arm each; the first one is judged. Unless it is bf16
            the head is a weight of its own beside the bf16 embedding.
        sizes: Sizes that differ from the published ones.
        threads: Of torch and of the native kernels; None for what they take by themselves.
        probe_bytes: Buffer that the bandwidth is measured on.
    """

    at_once: tuple[Positive, ...] = (1,)
    prompt_tokens: Positive = 32
    tokens: Annotated[int, Field(ge=2)] = 16
    bits_per_weight: Annotated[float, Field(ge=4.5, le=8.0)] = 5.0
    heads: Annotated[tuple[Precision, ...], Field(min_length=1)] = (Precision.NVFP4, Precision.BF16)
    sizes: dict[str, int] = Field(default_factory=dict)
    threads: Positive | None = None
    probe_bytes: Positive = READ_BYTES


def _mixed(head: Precision) -> str:
    return f"engine mixed, head {head}"


class _Decoding:
    """Seconds of decoding and answers of one arm, a pair for every call."""

    def __init__(self, decode: Callable[[], tuple[float, list[list[int]]]]) -> None:
        self._decode = decode
        self.seconds: list[float] = []
        self.answers: list[list[int]] = []

    def __call__(self) -> None:
        seconds, self.answers = self._decode()
        self.seconds.append(seconds)


def run(settings: Settings, repeats: int) -> Report:
    """Measures all three at each number of requests."""
    model = make_model({**PUBLISHED, **settings.sizes})
    sizes = model.group_sizes()
    plan = deal_precisions(sizes, settings.bits_per_weight)
    room, length = max(settings.at_once), settings.prompt_tokens + settings.tokens
    engines = {_BF16: load_random(model, room, length)}
    for head in settings.heads:
        engines[_mixed(head)] = load_random(model, room, length, plan, head)
    report = Report("model", settings, repeats)
    bits = sum(FORMATS[plan[name]].bits_per_weight * count for name, count in sizes.items())
    report.results["plan"] = {
        "groups": len(plan),
        "fp8_groups": sum(precision is Precision.FP8 for precision in plan.values()),
        "bits_per_weight": bits / sum(sizes.values()),
    }
    report.results["num_parameters"] = model.num_parameters
    report.results["memory"] = {name: _memory(loaded, model) for name, loaded in engines.items()}
    report.notes = list(_NOTES)
    for name, loaded in engines.items():
        growth = loaded.weight_bytes / loaded.stored_bytes - 1.0
        report.goals.append(
            Goal(f"{name}: weights in memory over stored, minus 1", growth, at_most=_MEMORY_GOAL)
        )
    theirs, probe = model.for_transformers(), ReadProbe(settings.probe_bytes)
    with use_threads(settings.threads):
        for at_once in settings.at_once:
            prompts = _prompts(settings, at_once, model)
            arms = {_BASE: _Decoding(partial(_generate, theirs, prompts, settings.tokens))}
            for name, loaded in engines.items():
                arms[name] = _Decoding(partial(_engine_decode, loaded, prompts, settings.tokens))
            report.results[f"{at_once} at once"] = _measure(arms, probe, engines, report, at_once)
    return report


def _prompts(settings: Settings, at_once: int, model: RandomModel) -> list[list[int]]:
    generator = torch.Generator().manual_seed(at_once)
    vocab = model.text_config.vocab_size
    drawn: list[list[int]] = torch.randint(
        vocab, (at_once, settings.prompt_tokens), generator=generator
    ).tolist()
    return drawn


class _Clock:
    """A streamer that notes when each token came; ``generate`` shows the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Called with the prompt, then with the tokens of each step."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called after the last step."""


def _generate(model: Any, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    ids, clock = torch.tensor(prompts), _Clock()
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=None,
            streamer=clock,
        )
    return clock.times[-1] - clock.times[1], output[:, ids.shape[1] :].tolist()


def _engine_decode(
    loaded: LoadedModel, prompts: list[list[int]], tokens: int
) -> tuple[float, list[list[int]]]:
    engine, params = loaded.engine, SamplingParams(max_tokens=tokens, ignore_eos=True)
    axes = engine.config.position_axes
    names = [engine.submit(text_prompt(prompt, axes), params) for prompt in prompts]
    answers: dict[str, list[int]] = {name: [] for name in names}
    while not all(answers.values()):
        for output in engine.step():
            answers[output.id] += output.new_ids
    begin = time.perf_counter()
    while engine.has_work:
        for output in engine.step():
            answers[output.id] += output.new_ids
    return time.perf_counter() - begin, [answers[name] for name in names]


def _measure(
    arms: dict[str, _Decoding],
    probe: ReadProbe,
    engines: dict[str, LoadedModel],
    report: Report,
    at_once: int,
) -> dict[str, object]:
    repeats = report.repeats or 0
    read = interleave({"read": probe, **arms}, repeats=repeats, warmup=1)["read"]
    bandwidth = median_interval(read).inverse(probe.num_bytes)
    timed = {name: arm.seconds[1:] for name, arm in arms.items()}
    num_tokens = at_once * (len(arms[_BASE].answers[0]) - 1)
    found: dict[str, object] = {"read_bytes_per_s": bandwidth}
    for name, seconds in timed.items():
        entry: dict[str, Any] = {"tokens_per_s": median_interval(seconds).inverse(num_tokens)}
        if name in engines:
            steps = num_tokens / at_once
            rates = [engines[name].read_bytes * steps / s for s in seconds]
            share = [rate * r / probe.num_bytes for rate, r in zip(rates, read, strict=True)]
            entry["share_of_bandwidth"] = median_interval(share)
            entry["ceiling_tokens_per_s"] = bandwidth.median / engines[name].read_bytes * at_once
        found[name] = entry
    faster = {f"{_BF16} over {_BASE}": ratio(timed[_BASE], timed[_BF16])}
    for name in list(engines)[1:]:
        faster[f"{name} over {_BF16}"] = ratio(timed[_BF16], timed[name])
        faster[f"{name} over {_BASE}"] = ratio(timed[_BASE], timed[name])
    found |= faster
    pairs = zip(arms[_BASE].answers, arms[_BF16].answers, strict=True)
    found["answers_equal"] = sum(a == b for a, b in pairs)
    bounds = {f"{list(engines)[1]} over {_BF16}": _MIXED_GOAL, f"{_BF16} over {_BASE}": _BF16_GOAL}
    for what, bound in bounds.items():
        report.goals.append(Goal(f"{at_once} at once, tokens/s: {what}", faster[what], bound))
    return found


def _memory(loaded: LoadedModel, model: RandomModel) -> dict[str, object]:
    return {
        "stored_bytes": loaded.stored_bytes,
        "weight_bytes": loaded.weight_bytes,
        "weights_over_stored": loaded.weight_bytes / loaded.stored_bytes - 1.0,
        "bytes_per_parameter": loaded.weight_bytes / model.num_parameters,
        "bytes_read_per_token": loaded.read_bytes,
    }
