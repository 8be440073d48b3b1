"""Everything that a report is made of, read back from a run folder.

Knows which files there are. Does not know what is said about them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ocrquant.artifacts import (
    Artifact,
    Assignment,
    FileRecord,
    Journal,
    PageScores,
    Pareto,
    Report,
    Rounding,
    Sensitivity,
    Statistics,
)
from ocrquant.assign import Terms, terms_of_size
from ocrquant.errors import ArtifactError
from ocrquant.recipe import RECIPE_NAME, load_recipe

__all__ = ["Material"]

A = TypeVar("A", bound=Artifact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the pages show; parts that a run folder no longer holds are left out of them.

    Attributes:
        report: The result.
        images: Encoded images of the worst pages by their path.
        sensitivity: Scores of the groups.
        page_scores: The same scores by page.
        assignment: The plan.
        pareto: Other plans.
        statistics: Activations.
        rounding: How weights were rounded.
        terms: Limits and settled groups of the recipe.
        timings: Records of how long stages took.
    """

    report: Report
    images: dict[str, bytes] = field(default_factory=dict)
    sensitivity: Sensitivity | None = None
    page_scores: PageScores | None = None
    assignment: Assignment | None = None
    pareto: Pareto | None = None
    statistics: Statistics | None = None
    rounding: Rounding | None = None
    terms: Terms = field(default_factory=Terms)
    timings: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path, report: Report, *, with_timings: bool) -> Material:
        """Reads what belongs to a report from a run folder, which may be in use.

        Args:
            folder: The run folder.
            report: The report.
            with_timings: Read ``timings.jsonl`` too.

        Raises:
            ArtifactError: A file is malformed, or an image is not the one of the report.
            RecipeError: The folder's recipe is malformed.
        """
        return cls(
            report=report,
            images={name: _image(folder / name, record) for name, record in report.images.items()},
            sensitivity=_optional(Sensitivity, folder),
            page_scores=_optional(PageScores, folder),
            assignment=_optional(Assignment, folder),
            pareto=_optional(Pareto, folder),
            statistics=_optional(Statistics, folder),
            rounding=_optional(Rounding, folder),
            terms=_terms(folder),
            timings=Journal(folder / "timings.jsonl").read() if with_timings else [],
        )


def _optional(kind: type[A], folder: Path) -> A | None:
    return kind.load(folder) if (folder / kind.FILE_NAME).is_file() else None


def _terms(folder: Path) -> Terms:
    has_recipe = (folder / RECIPE_NAME).is_file()
    return terms_of_size(load_recipe(folder).assign) if has_recipe else Terms()


def _image(path: Path, record: FileRecord) -> bytes:
    if FileRecord.of(path) != record:
        fix = "run the evaluation again"
        raise ArtifactError(path, expected=f"SHA-256 {record.sha256}", given="another file", fix=fix)
    return path.read_bytes()
