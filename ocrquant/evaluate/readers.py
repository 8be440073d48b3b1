"""What reads pages for one arm of the comparison, whatever computes it.

The two steps of an evaluation ask the same of a runtime and of a simulated plan: texts of some pages, logits
of given answers, and what it was that computed them. Knows that interface and the runtime's side of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ocrquant.artifacts import ArmName, RuntimeRecord
from ocrquant.engine.loading import Runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.request import FinishReason
from ocrquant.engine.sampling import SamplingParams
from ocrquant.engine.scoring import ForcedAnswer, Piece, Scorer
from ocrquant.evaluate.arms import runtime_record
from ocrquant.evaluate.truth import Truth
from ocrquant.pages import Page, page_image

__all__ = ["Maker", "NamedMakers", "Reader", "RuntimeReader"]

Output = dict[str, Any]
"""``text``, ``num_tokens`` and ``finished`` of one page."""


class Reader(Protocol):
    """An arm that is ready to read."""

    def transcribe(self, pages: Sequence[Page], max_new_tokens: int) -> dict[str, Output]:
        """What it reads on some pages, greedily, by their ids."""

    def score(self, pages: Sequence[Page], truths: Mapping[str, Truth]) -> Iterator[Piece]:
        """The logits of the answers of some pages, in pieces; equal calls give equal pieces."""

    def record(self, ops: Collection[str]) -> RuntimeRecord:
        """What computed it; `ops` are the names of the package's own ops that ran."""


Maker = Callable[[], Reader]
NamedMakers = Sequence[tuple[ArmName, Maker]]


class RuntimeReader:
    """An arm on the package's own runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self.runtime.engine, self.runtime.runner)

    def transcribe(self, pages: Sequence[Page], max_new_tokens: int) -> dict[str, Output]:
        """See `Reader`."""
        sampling = SamplingParams(max_tokens=max_new_tokens)
        for page in pages:
            encoded = self.runtime.processor.encode(page_image(page), page.kind)
            self.runtime.engine.submit(page_prompt(encoded), sampling, page.id)
        results = self.runtime.engine.run_until_done()
        return {
            page.id: {
                "text": results[page.id].text,
                "num_tokens": results[page.id].num_generated,
                "finished": results[page.id].finish_reason is FinishReason.END,
            }
            for page in pages
        }

    def score(self, pages: Sequence[Page], truths: Mapping[str, Truth]) -> Iterator[Piece]:
        """See `Reader`."""
        processor = self.runtime.processor
        prompts = [page_prompt(processor.encode(page_image(page), page.kind)) for page in pages]
        ids = [np.array(truths[page.id].ids, np.int32) for page in pages]
        return self._scorer.score([ForcedAnswer(*answer) for answer in zip(prompts, ids, strict=True)])

    def record(self, ops: Collection[str]) -> RuntimeRecord:
        """See `Reader`."""
        return runtime_record(self.runtime, ops)
