"""Pages through a target whose features are kept: its own answers, and what it computed on the way to them.

A drafter learns from what the very target that it will serve says and sees, quantized as it is. Knows the
engine's runner by its protocol. Knows no drafter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ocrquant.drafter.store import TargetSequence
from ocrquant.engine.engine import Engine
from ocrquant.engine.loading import Runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.plan import Plan, Sampled
from ocrquant.engine.preparing import PageTask, prepare
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.request import FinishReason, Request
from ocrquant.engine.runner import ModelRunner
from ocrquant.engine.sampling import SamplingParams

__all__ = ["harvest"]


class _FeatureRunner:
    """A runner that also hands over the features of every row that it computes.

    Args:
        runner: Computes; its model is tapped.
        features: [taps, most rows, hidden], where the model leaves them.
    """

    def __init__(self, runner: ModelRunner, features: Tensor) -> None:
        self._runner = runner
        self._features = features
        self._found: dict[str, list[tuple[int, Tensor]]] = {}
        self._last: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, plan: Plan) -> Sampled:
        """See `engine.plan.Runner`."""
        sampled = self._runner.run(plan)
        row = 0
        for request in plan.decode:
            self._keep(request, request.num_tokens - 1, row, 1)
            row += 1
        for chunk in plan.prefill:
            self._keep(chunk.request, chunk.start, row, chunk.num_rows)
            row += chunk.num_rows
        self._last |= zip((r.id for r in plan.sampled), sampled.tokens.tolist(), strict=True)
        return sampled

    def take(self, name: str) -> tuple[Tensor, int]:
        """What is kept of a request, and is forgotten with this call.

        Returns:
            [F, taps * hidden], features of its first F tokens in order; and its last token.
        """
        # A token that was computed again after a preemption has the same features, and comes later.
        by_start = dict(self._found.pop(name))
        parts, end = [], 0
        for start in sorted(by_start):
            rows = by_start[start][:, max(0, end - start) :]
            assert start <= end, "no token is left out"
            parts.append(rows)
            end += rows.shape[1]
        return torch.cat(parts, 1).transpose(0, 1).flatten(1), self._last.pop(name)

    def _keep(self, request: Request, start: int, row: int, count: int) -> None:
        rows = self._features[:, row : row + count].to("cpu", copy=True)
        self._found.setdefault(request.id, []).append((start, rows))


def harvest(
    runtime: Runtime, pages: Iterable[PageTask], taps: tuple[int, ...], *, max_tokens: int
) -> Iterator[TargetSequence]:
    """Reads pages greedily and gives each with the target's answer and features, as it is done.

    Pages that cannot be opened, and answers that were cut short (a loop, a limit), are left out: their tails
    are not what a drafter should learn.

    Args:
        runtime: The target; its engine is used by nobody else, and keeps no prefixes.
        pages: What to read, with distinct names.
        taps: Layers whose output to keep.
        max_tokens: Longest answer.

    Raises:
        ModelError: There is no such layer.
    """
    if runtime.model.tapped != taps:
        assert not runtime.runner.num_captures, "a step that was captured before keeps no features"
        runtime.model.tap(taps)
    runner = _FeatureRunner(runtime.runner, runtime.model.features)
    engine = Engine(runtime.engine.config, runner, runtime.processor.eos_ids)
    asked = SamplingParams(max_tokens=max_tokens, stop_at_loop=True)
    waiting = iter(pages)
    live: dict[str, tuple[PageTask, Prompt]] = {}
    has_more = True
    while has_more or engine.has_work:
        while has_more and len(live) < engine.config.max_requests:
            page = next(waiting, None)
            if page is None:
                has_more = False
            elif (encoded := prepare(runtime.processor.encoder, page).encoded) is not None:
                prompt = page_prompt(encoded)
                live[engine.submit(prompt, asked, page.id)] = page, prompt
        for output in engine.step() if engine.has_work else ():
            if output.result is not None:
                page, prompt = live.pop(output.id)
                features, end = runner.take(output.id)
                if output.result.finish_reason is FinishReason.END:
                    answer = torch.tensor([*output.result.ids, end])
                    tokens = torch.cat([torch.from_numpy(prompt.tokens).long(), answer])
                    assert len(features) == len(tokens) - 1, "every token but the last one was computed"
                    yield TargetSequence(page.id, str(page.kind), tokens, len(prompt), features)
