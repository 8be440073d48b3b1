"""Scores of all choices by one of the ways that a recipe names, as rows of the artefact.

Knows the scorer, which measures what it is asked for, and screening, which says what to ask for. Does not
know how many pages there are, nor when there are enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ocrquant.adapters import ModelMap
from ocrquant.artifacts import GroupRecord, Sensitivity, SensitivityRow
from ocrquant.artifacts.sensitivity import ScoreKind
from ocrquant.formats import FORMATS
from ocrquant.sensitivity.candidates import Candidate, Change
from ocrquant.sensitivity.estimates import Estimate, ratio_estimate
from ocrquant.sensitivity.scorer import PageSums, Scorer
from ocrquant.sensitivity.screening import Choice, PlansOf, correction_of, expected_regret, largest

__all__ = ["ChoiceScores", "Way"]

Way = Literal["gradient", "kl", "both", "screened"]

MAX_EXPECTED_REGRET = 0.01
"""Screening ends where plans from the estimates are expected to lose at most that much more, as a share."""

MAX_MEASURED_PASSES = 0.5
"""Screening takes at most that share of the decoder passes that measuring every choice would take."""

ROUNDS = 8
"""One part in so many of all choices is measured before it is asked again what is unsure."""


@dataclass(slots=True)
class ChoiceScores:
    """Scores of all choices on the pages that the scorer has.

    Attributes:
        way: `sensitivity.score` of the recipe.
        map: Structure of the model.
        groups: All searchable groups.
        candidates: What is open to them below bf16.
        scorer: Measures.
        plans_of: Plans for a grid of budgets.
        measured: Choices whose KL was measured.
    """

    way: Way
    map: ModelMap
    groups: list[GroupRecord]
    candidates: Sequence[Candidate]
    scorer: Scorer
    plans_of: PlansOf
    measured: set[Choice] = field(default_factory=set)

    def rows(self) -> list[SensitivityRow]:
        """Rows of the artefact, choice by choice."""
        found: dict[ScoreKind, dict[Choice, SensitivityRow]] = {}
        if self.way != "kl":
            gradient = self._estimates(self.scorer.gradients())
            found["gradient"] = self._rows("gradient", gradient)
        if self.way in ("kl", "both"):
            self.measured |= set(self._choices())
            found["kl"] = self._rows("kl", self._measured())
        if self.way == "screened":
            found["screened"] = self._screened(gradient)
        return [rows[choice] for choice in self._choices() for rows in found.values()]

    def first_rows(self) -> list[SensitivityRow]:
        """Rows that tell whether there are pages enough: gradients, where only some KL will be measured.

        They rank choices as measured ones do, and cost the same whether or not more pages follow.
        """
        if self.way != "screened":
            return self.rows()
        rows = self._rows("gradient", self._estimates(self.scorer.gradients()))
        return [rows[choice] for choice in self._choices()]

    def _choices(self) -> list[Choice]:
        return [(candidate.group, candidate.precision) for candidate in self.candidates]

    def _screened(self, gradient: Mapping[Choice, Estimate]) -> dict[Choice, SensitivityRow]:
        self.measured |= set(largest(gradient))
        kinds = {group.name: group.kind for group in self.groups}
        while True:
            found = self._measured()
            correction = correction_of(gradient, found, kinds)
            unsure = {c: spread for c, spread in correction.scatter.items() if c not in found}
            estimates = dict(found)
            for choice, spread in unsure.items():
                mean = gradient[choice].mean * correction.ratio[choice]
                noise = gradient[choice].standard_error * correction.ratio[choice]
                estimates[choice] = Estimate(mean, math.hypot(noise, spread * mean))
            rows = self._rows("screened", estimates)
            wanted = self._wanted(rows, unsure)
            if not wanted:
                return rows
            self.measured |= wanted

    def _wanted(self, rows: Mapping[Choice, SensitivityRow], unsure: Mapping[Choice, float]) -> set[Choice]:
        """What to measure next: the most regret for its price while there is room; nothing at the end."""
        known = Sensitivity(inputs={}, groups=self.groups, rows=list(rows.values()))
        by_budget, by_choice = expected_regret(known, unsure, self.plans_of)
        if max(by_budget.values(), default=0.0) <= MAX_EXPECTED_REGRET:
            return set()
        prices = {choice: self.scorer.passes(_change(choice)) for choice in self._choices()}
        room = MAX_MEASURED_PASSES * sum(prices.values()) - sum(prices[choice] for choice in self.measured)
        ranked = sorted(unsure, key=lambda choice: (-by_choice[choice] / prices[choice], choice))
        wanted: set[Choice] = set()
        for choice in ranked[: max(1, len(prices) // ROUNDS)]:
            if by_choice[choice] > 0 and prices[choice] <= room:
                wanted.add(choice)
                room -= prices[choice]
        return wanted

    def _measured(self) -> dict[Choice, Estimate]:
        choices = [choice for choice in self._choices() if choice in self.measured]
        sums = self.scorer.measure({_name(choice): _change(choice) for choice in choices})
        return self._estimates({choice: sums[_name(choice)] for choice in choices})

    def _estimates(self, sums: Mapping[Choice, PageSums]) -> dict[Choice, Estimate]:
        if not sums:
            return {}
        num_tokens = self.scorer.num_tokens()
        return {choice: ratio_estimate(values, num_tokens) for choice, values in sums.items()}

    def _rows(self, kind: ScoreKind, estimates: Mapping[Choice, Estimate]) -> dict[Choice, SensitivityRow]:
        if not estimates:
            return {}
        num_tokens = self.scorer.num_tokens()
        return {
            (group, precision): SensitivityRow(
                group=group,
                precision=precision,
                score=kind,
                is_measured=kind != "gradient" and (group, precision) in self.measured,
                mean=estimate.mean,
                standard_error=estimate.standard_error,
                num_pages=len(num_tokens),
                num_tokens=sum(num_tokens),
                bits_per_weight=FORMATS[precision].bits_per_weight,
                weight_bytes=self.map.group(group).weight_bytes(precision),
            )
            for (group, precision), estimate in estimates.items()
        }


def _name(choice: Choice) -> str:
    return f"{choice[0]}:{choice[1]}"


def _change(choice: Choice) -> Change:
    return Change({choice[0]: choice[1]})
