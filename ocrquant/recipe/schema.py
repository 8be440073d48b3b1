"""The whole recipe: its sections, rules that hold between them, and what identifies it.

Knows keys and values. Does not know whether a model, a page or a layer exists: `ocrquant check` looks.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Self

import yaml
from pydantic import AfterValidator, Field, model_validator

from ocrquant.formats import Precision
from ocrquant.recipe.drafter_section import DrafterSection
from ocrquant.recipe.sections import (
    AssignSection,
    EvaluateSection,
    ExportSection,
    GateSection,
    ModelSection,
    PagesSection,
    SearchSection,
    Section,
    SensitivitySection,
    StatisticsSection,
    WeightsSection,
    rule_broken,
)

__all__ = ["Recipe"]

# Where a run happens and what it is called do not change its result; a drafter has a record of its own.
_NOT_IN_DIGEST = frozenset({"output", "device", "drafter"})
# Section -> keys that decide how a result is computed, but not what it is.
_NOT_IN_SECTION_DIGEST: dict[str, set[str]] = {"model": {"residency"}}


def _check_device(device: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise rule_broken("auto, cpu, cuda or cuda:N", repr(device), "correct the value")
    return device


class Recipe(Section):
    """The whole way from a model and pages to a checkpoint and a report.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; by default what OCRQUANT_DEVICE says, else
            ``auto``.
        output: Run folder, relative to the working directory.
    """

    model: ModelSection
    pages: PagesSection
    device: Annotated[str, AfterValidator(_check_device)] | None = None
    statistics: StatisticsSection = StatisticsSection()
    sensitivity: SensitivitySection
    search: SearchSection = SearchSection()
    weights: WeightsSection = WeightsSection()
    assign: AssignSection
    export: ExportSection = ExportSection()
    evaluate: EvaluateSection = EvaluateSection()
    gate: GateSection | None = None
    drafter: DrafterSection | None = None
    output: str = Field(min_length=1)

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        pages, weights, sensitivity = self.pages, self.weights, self.sensitivity
        if not weights.is_nearest and weights.num_held_back_pages >= pages.num_calibration_pages:
            raise rule_broken(
                "weights.num_held_back_pages below pages.num_calibration_pages",
                f"{weights.num_held_back_pages} of {pages.num_calibration_pages}",
                "take more calibration pages or hold fewer back",
            )
        if (sensitivity.num_pages or 0) > pages.num_calibration_pages:
            raise rule_broken(
                "sensitivity.num_pages of at most pages.num_calibration_pages",
                f"{sensitivity.num_pages} of {pages.num_calibration_pages}",
                "take more calibration pages or score on fewer",
            )
        if self.assign.budget.kind == "max_kl" and sensitivity.score == "gradient":
            raise rule_broken(
                "measured KL scores for assign.budget.max_kl",
                "sensitivity.score gradient",
                "set sensitivity.score to screened, kl or both",
            )
        if self.gate is not None and self.gate.require_equivalence and self.evaluate.equivalence is None:
            raise rule_broken(
                "evaluate.equivalence with a margin for gate.require_equivalence",
                "none",
                "state evaluate.equivalence.cer_margin, or remove gate.require_equivalence",
            )
        if self.gate is not None and self.gate.min_acceptance_length and self.evaluate.drafter is None:
            raise rule_broken(
                "evaluate.drafter for gate.min_acceptance_length",
                "none",
                "name a drafter, or remove gate.min_acceptance_length",
            )
        closed = [p for p in self.search.force if p != Precision.BF16 and p not in sensitivity.candidates]
        if closed:
            raise rule_broken(
                f"search.force with formats of sensitivity.candidates ({', '.join(sensitivity.candidates)})",
                closed[0],
                f"add {closed[0]} to the candidates",
            )
        return self

    def digest(self) -> str:
        """SHA-256 of everything that the recipe says with all imports, overrides and defaults filled in.

        `output`, `device` and `model.residency` are left out: a run may be moved and go on elsewhere. So is
        `drafter`: it changes no plan.
        """
        return self.section_digest(*(name for name in type(self).model_fields if name not in _NOT_IN_DIGEST))

    def section_digest(self, *sections: str) -> str:
        """SHA-256 of some sections: what a stage that reads only these depends on.

        Args:
            *sections: Names of top-level keys.
        """
        data = self.model_dump(mode="json", include=set(sections), exclude=_NOT_IN_SECTION_DIGEST)
        assert set(data) == set(sections), f"no such section among {sections}"
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_yaml(self) -> str:
        """The resolved recipe, defaults included; loading it gives an equal recipe."""
        data = self.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(data, sort_keys=False, width=1 << 16, allow_unicode=True)
