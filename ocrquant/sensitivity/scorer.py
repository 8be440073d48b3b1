"""Scores of single changes on batches of pages, shared out to all processes and written down as found.

A unit of work is one batch with its gradients, or with some changes whose KL is measured. Units depend on
pages and recipe alone, and so does every figure: processes that are killed, and others of another number that
go on, find the same. Knows batches, changes and what they cost; does not know which of them are worth it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby, product
from typing import Literal

from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import PageScoreRow, PageScores, PartialStage, ScoredPage
from ocrquant.distributed import ranks
from ocrquant.errors import ModelError
from ocrquant.formats import Precision
from ocrquant.pages import Page
from ocrquant.progress import progress_bar
from ocrquant.sensitivity.batches import encode, num_positions
from ocrquant.sensitivity.candidates import Candidate, Change, RoundedCandidates
from ocrquant.sensitivity.divergence import divergences
from ocrquant.sensitivity.gradient import gradient_sums
from ocrquant.sensitivity.records import Records, deal
from ocrquant.sensitivity.replay import HiddenStates, Trace, trace_batch

__all__ = ["PageSums", "Scorer"]

MAX_CHANGES = 8
"""Most changes of a unit, whose work a kill can lose."""

CARRIED_BYTES = 1 << 29
"""Hidden states of the changes of a unit, unless a single one takes more."""

GRADIENT_PASSES = 6.0
"""Forward passes that the gradients of all candidates take as long as."""

_KINDS: tuple[Literal["gradient", "kl"], ...] = ("gradient", "kl")

PageSums = list[float]
"""Sums of a score over the tokens of each page."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Some changes on one batch, or the gradients of all candidates where there is no change."""

    batch: int
    changes: tuple[str, ...]
    cost: float


class Scorer:
    """Measures what it is asked for, unless it has been measured before.

    Args:
        document: The model, smoothed and in float32.
        rounded: Rounded weights.
        candidates: What gradients are taken of.
        partial: Where half-done work lies.
        resident_bytes: Hidden states to keep on the device; no figure depends on it.
    """

    def __init__(
        self,
        document: DocumentModel,
        rounded: RoundedCandidates,
        candidates: Sequence[Candidate],
        partial: PartialStage,
        resident_bytes: int,
    ) -> None:
        self._document, self._rounded, self._candidates = document, rounded, candidates
        self._partial, self._resident_bytes = partial, resident_bytes
        self._hidden_bytes = 4 * int(document.model.config.get_text_config().hidden_size)
        self._here = ranks()
        self._records = Records(partial, "scores", self._here)
        self._batches: list[list[Page]] = []
        self._traces: dict[int, Trace] = {}
        self._room = resident_bytes // 2

    def add(self, batches: Sequence[list[Page]]) -> None:
        """More pages: what is asked for from now on is of these too."""
        self._batches += batches

    @property
    def num_pages(self) -> int:
        """Pages added so far."""
        return sum(map(len, self._batches))

    def num_tokens(self) -> list[int]:
        """Judged tokens of each page; something must have been scored before."""
        return [int(n) for batch in range(len(self._batches)) for n in self._records[f"{batch}:tokens"]]

    def gradients(self) -> dict[tuple[str, Precision], PageSums]:
        """The gradient score of every candidate, by group and format."""
        self._run([], is_gradient=True)
        return {
            (c.group, c.precision): self._sums(f"gradient:{c.group}:{c.precision}") for c in self._candidates
        }

    def measure(self, changes: Mapping[str, Change]) -> dict[str, PageSums]:
        """The measured KL of every change, by the names given to them."""
        self._run(list(changes.items()), is_gradient=False)
        return {name: self._sums(f"kl:{name}") for name in changes}

    def by_page(self, inputs: Mapping[str, str]) -> PageScores:
        """The scores of single choices before they are averaged, those that all pages have.

        Args:
            inputs: SHA-256 of everything that they were made from, by name.
        """
        numbers, rows = range(len(self._batches)), []
        for candidate, kind in product(self._candidates, _KINDS):
            key = f"{kind}:{candidate.group}:{candidate.precision}"
            if all(f"{number}:{key}" in self._records for number in numbers):
                group, precision = candidate.group, candidate.precision
                sums = self._sums(key)
                rows.append(PageScoreRow(group=group, precision=precision, score=kind, sums=sums))
        num_tokens = self.num_tokens() if rows else [0] * self.num_pages
        pages = [page for batch in self._batches for page in batch]
        return PageScores(
            inputs=dict(inputs),
            pages=[ScoredPage(id=p.id, num_tokens=n) for p, n in zip(pages, num_tokens, strict=True)],
            rows=rows,
        )

    def passes(self, change: Change) -> float:
        """Decoder passes that measuring a change takes, the head counted as one more block."""
        num_blocks = self._document.map.num_blocks
        first = min(self._rounded.by_block(change), default=num_blocks)
        return (num_blocks - first + 1) / (num_blocks + 1)

    def _sums(self, key: str) -> PageSums:
        return [value for batch in range(len(self._batches)) for value in self._records[f"{batch}:{key}"]]

    def _run(self, changes: Sequence[tuple[str, Change]], *, is_gradient: bool) -> None:
        units = list(self._units(changes, is_gradient=is_gradient))
        mine = [units[number] for number in deal([unit.cost for unit in units], self._here)]
        by_name = dict(changes)
        title = "gradient scores" if is_gradient else "measured scores"
        total = sum(self._num_scores(unit) for unit in mine)
        with progress_bar(title, total, "scores") if self._here.is_first else nullcontext(_silent) as advance:
            for number, same in groupby(mine, key=lambda unit: unit.batch):
                trace = self._trace(number)
                for unit in same:
                    found = {f"{number}:tokens": [float(n) for n in trace.num_tokens]}
                    found |= self._scores(trace, unit, by_name)
                    self._records.add(found)
                    advance(self._num_scores(unit))
        self._records.exchange()

    def _units(self, changes: Sequence[tuple[str, Change]], *, is_gradient: bool) -> Iterator[_Unit]:
        """What is still to do, batch by batch, changes of neighbouring blocks together."""
        costs = {name: self.passes(change) for name, change in changes}
        for number, batch in enumerate(self._batches):
            positions = num_positions(self._document, batch)
            if is_gradient:
                if any(self._gradient_key(number, c) not in self._records for c in self._candidates):
                    yield _Unit(number, (), GRADIENT_PASSES * positions)
                continue
            names = [name for name, _ in changes if f"{number}:kl:{name}" not in self._records]
            size = max(1, min(MAX_CHANGES, CARRIED_BYTES // (positions * self._hidden_bytes)))
            for first in range(0, len(names), size):
                chunk = tuple(names[first : first + size])
                yield _Unit(number, chunk, positions * sum(costs[name] for name in chunk))

    def _num_scores(self, unit: _Unit) -> int:
        return len(unit.changes or self._candidates) * len(self._batches[unit.batch])

    def _trace(self, number: int) -> Trace:
        """What the unquantized model sees in a batch: kept for later rounds as far as memory allows."""
        if number in self._traces:
            return self._traces[number]
        batch = self._batches[number]
        num_states = self._document.map.num_blocks + 1
        num_bytes = num_states * num_positions(self._document, batch) * self._hidden_bytes
        is_kept = num_bytes <= self._room
        # What is not kept may spill, and the next batch writes over it.
        name = f"input-{self._here.index}" + (f"-{number}" if is_kept else "")
        hidden = HiddenStates(self._partial, num_bytes if is_kept else self._resident_bytes // 2, name)
        trace = trace_batch(self._document, encode(self._document, batch), hidden)
        if is_kept:
            self._traces[number] = trace
            self._room -= num_bytes
        return trace

    def _scores(self, trace: Trace, unit: _Unit, changes: Mapping[str, Change]) -> dict[str, PageSums]:
        if not unit.changes:
            ids = [page.id for page in self._batches[unit.batch]]
            sums = gradient_sums(trace, self._candidates, self._rounded, ids)
            found = {self._gradient_key(unit.batch, c): sums[c.group, c.precision] for c in self._candidates}
        else:
            carried = HiddenStates(self._partial, self._resident_bytes // 2, f"carried-{self._here.index}")
            some = [changes[name] for name in unit.changes]
            measured = divergences(trace, some, self._rounded, carried)
            found = {f"{unit.batch}:kl:{name}": s for name, s in zip(unit.changes, measured, strict=True)}
        for key, values in found.items():
            _check_finite(key, values)
        return found

    @staticmethod
    def _gradient_key(number: int, candidate: Candidate) -> str:
        return f"{number}:gradient:{candidate.group}:{candidate.precision}"


def _silent(count: int, note: str = "") -> None:
    """Moves no bar."""


def _check_finite(key: str, values: PageSums) -> None:
    if all(map(math.isfinite, values)):
        return
    _, kind, name, *precision = key.split(":")
    raise ModelError(
        f"{kind} score of group {name}" + "".join(f" in {p}" for p in precision),
        expected="finite logits and gradients",
        given="NaN or Inf",
        fix="keep the group in bf16 by search.keep_bf16, and report the model",
    )
