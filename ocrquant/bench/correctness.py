"""Greedy bf16 text of the engine against `transformers`, and of many pages at once against one by one.

`transformers` reads every page by itself with its own modules and cache. As long as both chose the same
tokens, their logits answer the same question; how much they differ there is the noise of two orders of
summation in bf16. Where the tokens first part, both still saw the same tokens, so that the logits of
`transformers` at that place say how close the choice was; what follows is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ocrquant.bench.pages import CROPS, BenchPage, checkpoint_folder, heldout_pages
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.serving_arms import NOTE, TransformersArm
from ocrquant.bench.threads import use_threads
from ocrquant.engine.loading import Runtime, RuntimeSettings, load_runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.request import RequestResult
from ocrquant.engine.sampling import SamplingParams

__all__ = ["Comparison", "Settings", "run"]

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """What is read.

    Attributes:
        model: Unquantized checkpoint, or the name of a shipped model.
        source: Pages.
        crops: How many.
        at_once: Requests of the batch that is compared with single pages.
        max_tokens: Longest answer.
        threads: Of torch and of the native kernels; None for what they take by themselves.
    """

    model: str = "pico"
    source: Path = CROPS
    crops: Positive = 200
    at_once: Positive = 32
    max_tokens: Positive = 256
    threads: Positive | None = None


@dataclass(slots=True)
class Comparison:
    """Differences of logits where both saw the same tokens, and the places where choices parted.

    Attributes:
        gap_noise: At each place of an equal choice, how much the distance between the two largest logits of
            `transformers` differs in the engine.
        logit_noise: At each such place, the largest difference of any logit.
        parted: Places where choices first differed.
    """

    gap_noise: list[float] = field(default_factory=list)
    logit_noise: list[float] = field(default_factory=list)
    parted: list[dict[str, Any]] = field(default_factory=list)

    def add(self, page: str, theirs: Tensor, ours: Tensor) -> None:
        """Compares one page.

        Args:
            page: Its name.
            theirs: float32 [tokens, vocabulary], logits of `transformers` at every token that it chose.
            ours: The same of the engine.
        """
        for place in range(min(len(theirs), len(ours))):
            # As `generate` chooses: of two equal logits `topk` may name the other one first.
            best, chosen = int(theirs[place].argmax()), int(ours[place].argmax())
            second = next(token for token in theirs[place].topk(2).indices.tolist() if token != best)
            gap = float(theirs[place, best] - theirs[place, second])
            if chosen != best:
                self.parted.append(
                    {
                        "page": page,
                        "position": place,
                        "token_of_transformers": best,
                        "token_of_engine": chosen,
                        "top_two_gap_of_transformers": gap,
                        "gap_to_token_of_engine": float(theirs[place, best] - theirs[place, chosen]),
                        "gap_of_engine": float(ours[place, chosen] - ours[place, best]),
                    }
                )
                return
            other = float(ours[place, best] - ours[place, second])
            self.gap_noise.append(abs(other - gap))
            self.logit_noise.append(float((ours[place] - theirs[place]).abs().max()))

    def noise(self) -> dict[str, float]:
        """What differences of logits were seen; the stated noise is ``largest_gap_change``."""
        return {
            "places": len(self.gap_noise),
            "largest_gap_change": max(self.gap_noise, default=0.0),
            "gap_change_at_99.9_percent": float(np.quantile(self.gap_noise or [0.0], 0.999)),
            "gap_change_median": float(np.median(self.gap_noise or [0.0])),
            "largest_logit_change": max(self.logit_noise, default=0.0),
        }


def run(settings: Settings, repeats: int) -> Report:
    """Compares all pages; nothing is timed or repeated."""
    pages, folder = heldout_pages(settings.crops, settings.source), checkpoint_folder(settings.model)
    theirs = TransformersArm(folder, torch.bfloat16, settings.max_tokens)
    runtime = load_runtime(folder, RuntimeSettings(max_requests=settings.at_once))
    found, alone = Comparison(), []
    with use_threads(settings.threads):
        for page in pages:
            result, ours = read_alone(runtime, page, settings.max_tokens)
            output = theirs.generate(theirs.encode([page]), output_logits=True, return_dict_in_generate=True)
            found.add(page.id, torch.cat(output.logits).float(), ours)
            alone.append(result)
        together = read_together(runtime, pages, settings.max_tokens)
    exceptions = [
        {"page": page.id, "alone": one.text, "together": many.text}
        for page, one, many in zip(pages, alone, together, strict=True)
        if (one.ids, one.gaps) != (many.ids, many.gaps)
    ]
    noise = found.noise()
    for parted in found.parted:
        parted["within_noise"] = parted["top_two_gap_of_transformers"] <= noise["largest_gap_change"]
    beyond = sum(not parted["within_noise"] for parted in found.parted)
    report = Report("correctness", settings, None)
    report.results = {
        "pages": len(pages),
        "tokens": sum(result.num_generated for result in alone),
        "equal_to_transformers": len(pages) - len(found.parted),
        "noise": noise,
        "differences": found.parted,
        "at_once": settings.at_once,
        "equal_to_one_by_one": len(pages) - len(exceptions),
        "batch_differences": exceptions,
    }
    report.goals = [
        Goal(
            "pages that part from transformers beyond the noise",
            beyond,
            at_most=0,
        ),
        Goal("pages whose tokens or gaps change in a batch", len(exceptions), at_most=0),
    ]
    report.notes = [
        NOTE,
        "noise: largest change, between transformers and the engine, of the distance between the two largest "
        "logits of transformers, over all places where both chose the same tokens up to and including it",
        "a batch is compared by tokens and by the gaps of all of them, as bits",
    ]
    return report


def read_alone(runtime: Runtime, page: BenchPage, max_tokens: int) -> tuple[RequestResult, Tensor]:
    """The answer to one page and float32 [tokens, vocabulary], the logits of each of its tokens."""
    engine, rows = runtime.engine, []
    prompt = page_prompt(runtime.processor.encode(page.image, page.kind))
    engine.submit(prompt, SamplingParams(max_tokens=max_tokens))
    result = None
    while engine.has_work:
        outputs = engine.step()
        if outputs:
            rows.append(runtime.runner.logits[0].clone())
            result = outputs[0].result
    assert result is not None, "the engine has no work left"
    return result, torch.stack(rows)


def read_together(runtime: Runtime, pages: Sequence[BenchPage], max_tokens: int) -> list[RequestResult]:
    """The answers to all pages, as many at once as there is room for."""
    params = SamplingParams(max_tokens=max_tokens)
    names = [
        runtime.engine.submit(page_prompt(runtime.processor.encode(page.image, page.kind)), params)
        for page in pages
    ]
    results = runtime.engine.run_until_done()
    return [results[name] for name in names]
