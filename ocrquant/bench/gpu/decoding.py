"""Decoding from end to end, one change at a time: bf16, FP8, fused producers, graphs, speculation.

The same prompts and greedy answers of one length in every arm; only decoding is timed, arms interleaved. What
a random model says means nothing: its guesses are its own answers, read before, with a wrong token where the
stated length of acceptance ends, and no drafter's time is in them. Knows engines; knows no kernel.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import Qwen3_5TextConfig

from ocrquant.adapters import model_folder
from ocrquant.bench.gpu.kernels import TARGET_OF
from ocrquant.bench.gpu.result import Line, not_measured
from ocrquant.bench.gpu.session import Session
from ocrquant.bench.random_model import LoadedModel, RandomModel, load_random, make_model
from ocrquant.bench.timing import Estimate, interleave, median_interval
from ocrquant.cost import MODELS, PLANS, TARGETS, Acceptance, Decoding, Load, estimate
from ocrquant.engine.plan import Tables
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.request import Request
from ocrquant.engine.sampling import SamplingParams
from ocrquant.formats import Precision
from ocrquant.kernels.selection import without_triton

__all__ = ["NINE", "nine", "pico"]

NINE: Mapping[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248320,
}
"""Sizes of Qwen3.5-9B's decoder; here the head is the embedding, which changes no byte that a step reads."""

_PREFIX = "model.language_model."
_REQUESTS, _PROMPT, _TOKENS, _WINDOW, _ACCEPTED = 8, 32, 49, 16, 9
_MS = 1e3


def pico(session: Session) -> Iterator[Line]:
    """The model that ships, on text alone."""
    yield from _measure(session, "pico", _pico_text(session.device), None)


def nine(session: Session) -> Iterator[Line]:
    """A random model of Qwen3.5-9B shape, and its steps against the limits of the machine."""
    yield from _measure(session, "9b", make_model(NINE, device=session.device), "qwen3.5-9b")


def _pico_text(device: torch.device) -> RandomModel:
    """The decoder of the shipped model with its trained weights."""
    folder = model_folder("pico")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = {
        name: tensor.to(device)
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
        if name.startswith(_PREFIX)
    }
    return RandomModel(Qwen3_5TextConfig(**config["text_config"]), tensors)


class _Own:
    """Guesses from answers that are known, right for so many tokens of a step that `accepted` are emitted."""

    def __init__(self, accepted: int) -> None:
        self.answers: list[list[int]] = []
        self.alone: Sequence[tuple[int, ...]] = ()
        self._accepted = accepted

    def propose(self, requests: Sequence[Request], most: int, tables: Tables) -> list[tuple[int, ...]]:
        """See `engine.drafting.DraftSource`."""
        del tables
        return [self._guess(request.output_ids, most) for request in requests]

    def _guess(self, known: list[int], most: int) -> tuple[int, ...]:
        for answer in self.answers:
            if answer[: len(known)] == known:
                ahead = answer[len(known) : len(known) + most]
                right, wrong = ahead[: self._accepted - 1], ahead[self._accepted - 1 :]
                return (*right, *(token ^ 1 for token in wrong))
        return ()


@dataclass(slots=True, eq=False)
class _Arm:
    """One way to decode.

    Attributes:
        name: In its line.
        loaded: The engine.
        around: What holds while it decodes.
        plan: Precision of its parts, a key of `PLANS`.
        captured: Whether its steps are.
        window: Rows of a request in a step.
    """

    name: str
    loaded: LoadedModel
    around: Callable[[], AbstractContextManager[None]]
    plan: str
    captured: bool = False
    window: int = 1

    def decode(self, prompts: list[list[int]]) -> tuple[float, list[list[int]], int]:
        """Seconds from the first token of every answer to the last, answers, and steps."""
        engine, params = self.loaded.engine, SamplingParams(max_tokens=_TOKENS, ignore_eos=True)
        axes, steps = engine.config.position_axes, 0
        with self.around():
            names = [engine.submit(text_prompt(prompt, axes), params) for prompt in prompts]
            answers: dict[str, list[int]] = {name: [] for name in names}
            while not all(answers.values()):
                self._step(answers)
            begin = time.perf_counter()
            while engine.has_work:
                self._step(answers)
                steps += 1
            seconds = time.perf_counter() - begin
        return seconds, [answers[name] for name in names], steps

    def _step(self, answers: dict[str, list[int]]) -> None:
        for output in self.loaded.engine.step():
            answers[output.id] += output.new_ids


def _measure(session: Session, section: str, model: RandomModel, shape: str | None) -> Iterator[Line]:
    arms, own = _arms(model, session.device)
    generator = torch.Generator().manual_seed(0)
    vocab = model.text_config.vocab_size
    prompts = torch.randint(2, vocab, (_REQUESTS, _PROMPT), generator=generator).tolist()
    own.answers = arms[-2].decode(prompts)[1]
    found: dict[str, list[tuple[float, int]]] = {arm.name: [] for arm in arms}

    def run(arm: _Arm) -> Callable[[], None]:
        def call() -> None:
            seconds, _, steps = arm.decode(prompts)
            found[arm.name].append((seconds, steps))

        return call

    interleave({arm.name: run(arm) for arm in arms}, repeats=session.repeats, warmup=1)
    before: Estimate | None = None
    for arm in arms:
        timed = found[arm.name][1:]
        rate = median_interval([seconds for seconds, _ in timed]).inverse(_REQUESTS * (_TOKENS - 1))
        gain = None if before is None else rate.median / before.median
        note = ""
        if arm.window > 1:
            each = (_TOKENS - 1) / timed[0][1]
            note = f"windows of {_WINDOW}, {each:.1f} tokens a step by construction, without a drafter's time"
        what = f"{arm.name}, {_REQUESTS} requests"
        yield Line.of(section, what, rate, "tokens/s", gain=gain, note=note)
        before = rate
        steps = median_interval([seconds / max(steps, 1) for seconds, steps in timed])
        if shape is not None:
            yield _against_limits(session, section, arm, steps, shape)


def _arms(model: RandomModel, device: torch.device) -> tuple[list[_Arm], _Own]:
    """From bf16 to speculation, each with one change more."""
    length, own = _PROMPT + _TOKENS + _WINDOW, _Own(_ACCEPTED)
    fp8 = dict.fromkeys(model.group_sizes(), Precision.FP8)

    def load(plan: Mapping[str, Precision] | None, **more: Any) -> LoadedModel:
        return load_random(model, _REQUESTS, length, plan, device=device, **more)

    eager = load(fp8, captured=False)
    arms = [
        _Arm("bf16, eager", load(None, captured=False), without_triton, "bf16"),
        _Arm("+ FP8", eager, without_triton, "fp8"),
        _Arm("+ fusions", eager, nullcontext, "fp8"),
        _Arm("+ graphs", load(fp8), nullcontext, "fp8", captured=True),
        _Arm("+ speculation", load(fp8, drafts=own, window=_WINDOW), nullcontext, "fp8", True, _WINDOW),
    ]
    return arms, own


def _against_limits(session: Session, section: str, arm: _Arm, step: Estimate, shape: str) -> Line:
    """The measured step, and the share of it that the limits of the machine explain."""
    what, name = f"{arm.name}, a step", TARGET_OF.get(session.arch)
    if name is None:
        return not_measured(section, what, f"no stated limits of {session.arch}")
    acceptance = Acceptance.of_length(_ACCEPTED, _WINDOW) if arm.window > 1 else None
    decoding = Decoding(
        model=MODELS[shape], plan=PLANS[arm.plan], captured=arm.captured, acceptance=acceptance
    )
    load = Load(batch=_REQUESTS, window=arm.window, context=_PROMPT + _TOKENS // 2)
    limit = estimate(decoding, TARGETS[name], load)
    note = f"modelled {limit.ms:.2f} ms, bound by {limit.bound}: {100 * limit.ms / (step.median * _MS):.0f} %"
    return Line.of(section, what, step.scaled(_MS), "ms", note=note)
