"""What one seed of the contest with ModelOpt is run with: pages, folders, rounded weights, scoring.

Knows stages by their functions. Knows no side and no plan.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import Rounding, RunFolder, Statistics, sha256_data
from ocrquant.bench.report import plain
from ocrquant.calibrate import collect_statistics, round_groups
from ocrquant.formats import Precision
from ocrquant.pages import Page, load_pages
from ocrquant.recipe.sections import SensitivitySection, StatisticsSection, WeightsSection

__all__ = ["FORMATS", "SeedContest"]

FORMATS = (Precision.NVFP4, Precision.FP8)
HELD_BACK = 4
"""One page in so many decides which steps of our rounding are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedContest:
    """What one seed is run with; see `ocrquant.bench.contest.Settings`."""

    model: str
    source: Path
    folder: Path
    num_pages: int
    num_heldout_pages: int
    batch_size: int
    bits: tuple[float, ...]
    seed: int
    max_measurements: int
    own_weights: bool
    score_judged: bool

    def pages(self, split: Literal["calibration", "heldout"]) -> list[Page]:
        """The seed's choice of pages of a split."""
        count = self.num_pages if split == "calibration" else self.num_heldout_pages
        pages = [page for page in load_pages(self.source) if page.split == split]
        order = sorted(pages, key=lambda page: hashlib.sha256(f"{self.seed}:{page.id}".encode()).digest())
        return order[:count]

    def digest(self, *extra: object) -> str:
        """Of everything that all plans depend on, and of what only some do."""
        pages = [page.id for page in self.pages("calibration")]
        return sha256_data([str(self.model), pages, self.batch_size, self.bits, *extra])

    def heldout_inputs(self) -> dict[str, str]:
        """What is measured on the held-out pages depends on, by name."""
        return {
            "contest": self.digest(),
            "heldout": sha256_data([page.id for page in self.pages("heldout")]),
        }

    def rounded(self, run: RunFolder, document: DocumentModel, weights: str) -> Rounding:
        """Statistics and rounded weights of the calibration pages, made where they are not there."""
        section = WeightsSection(smoothing=False, scale_search=False, gptq=False)
        if weights == "own":
            section = WeightsSection(num_held_back_pages=max(1, self.num_pages // HELD_BACK))
        inputs = {"contest": self.digest()}
        pages = self.pages("calibration")
        batching = StatisticsSection(batch_size=self.batch_size)
        if not run.is_current(Statistics, inputs):
            collect_statistics(run, document, pages, batching, inputs)
        if not run.is_current(Rounding, inputs):
            round_groups(run, document, pages, run.load(Statistics), section, list(FORMATS), batching, inputs)
        return run.load(Rounding)

    def run_folder(self, name: str) -> RunFolder:
        """A run folder of its own for some of the work."""
        text = json.dumps({"contest": plain(asdict(self)), "weights": name}, default=str)
        # Artefacts that do not fit are made again: what they were made from stands in each of them.
        return RunFolder.open(
            self.folder / name, recipe_digest=self.digest(name), recipe_text=text, adopt=True
        )

    def scoring(self) -> SensitivitySection:
        """How our stages score."""
        return SensitivitySection(
            score="screened", candidates=list(FORMATS), grow_pages=False, batch_size=self.batch_size
        )
