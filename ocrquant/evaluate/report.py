"""From transcripts and artefacts to ``report.json``, ``report.md`` and ``report.html``.

Knows what a report is made of. Runs no model: a report can be made again, or shown again, from a run folder
alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrquant.artifacts import (
    ArmName,
    ArmReport,
    Artifact,
    Assignment,
    ChainLink,
    CheckpointRecord,
    Comparison,
    DraftReport,
    Drafts,
    ExpertStatistics,
    FileRecord,
    PageOutput,
    PageSet,
    PageTranscripts,
    Pareto,
    Report,
    Rounding,
    RunFolder,
    Sensitivity,
    Statistics,
    Transcripts,
    sha256_file,
    write_bytes,
)
from ocrquant.evaluate.draft_words import draft_notes
from ocrquant.evaluate.drafts import measure_drafts
from ocrquant.evaluate.equivalence import measure_equivalence
from ocrquant.evaluate.gate import gate_checks
from ocrquant.evaluate.html_page import render_html
from ocrquant.evaluate.markdown import render_markdown
from ocrquant.evaluate.material import Material
from ocrquant.evaluate.notes import report_notes
from ocrquant.evaluate.scoring import BASELINE, Scores
from ocrquant.evaluate.sizes import ArmSize, arm_size
from ocrquant.formats import Precision
from ocrquant.recipe.sections import EvaluateSection, GateSection

__all__ = ["IMAGE_FOLDER", "NUM_WORST_PAGES", "RunFacts", "build_report", "write_pages", "write_report"]

NUM_WORST_PAGES = 5
IMAGE_FOLDER = "report_pages"

_CHAIN: tuple[type[Artifact], ...] = (
    PageSet,
    Statistics,
    Rounding,
    Sensitivity,
    Assignment,
    Pareto,
    CheckpointRecord,
    Transcripts,
    Drafts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a report says of its run beside the results.

    Attributes:
        model: The model as the recipe names it.
        recipe_sha256: Digest of the resolved recipe.
        source_bytes: Bytes of the model folder that was quantized.
        seed: Seed of the bootstrap.
        has_fp8_cache: Whether arms other than bf16 keep FP8 caches.
    """

    model: str
    recipe_sha256: str
    source_bytes: int
    seed: int
    has_fp8_cache: bool


def build_report(
    run: RunFolder,
    transcripts: Transcripts,
    *,
    drafts: Drafts | None = None,
    arm_groups: Mapping[ArmName, Mapping[str, Precision]],
    save_images: Callable[[Sequence[PageTranscripts]], Mapping[str, str]],
    evaluate: EvaluateSection,
    gate: GateSection | None,
    facts: RunFacts,
    inputs: Mapping[str, str],
) -> Report:
    """Judges transcripts.

    Args:
        run: The run folder with the artefacts of the stages before.
        transcripts: What each arm read; saved already.
        drafts: What the plan read with the drafter that the recipe names; saved already.
        arm_groups: Precision by group in each uniform arm.
        save_images: Writes the images of some pages into the run folder; gives their files, relative to it,
            by the id of the page.
        evaluate: Section of the recipe.
        gate: Section of the recipe, if it has one.
        facts: What else is said of the run.
        inputs: SHA-256 of everything that the report is made from.

    Raises:
        ArtifactError: An artefact is missing or malformed.
    """
    sensitivity, assignment = run.load(Sensitivity), run.load(Assignment)
    checkpoint = run.load(CheckpointRecord)
    scores = Scores(transcripts, num_resamples=evaluate.num_bootstrap_samples, seed=facts.seed)
    sizes = {name: arm_size(groups, sensitivity) for name, groups in arm_groups.items()}
    sizes["plan"] = arm_size(assignment.groups, sensitivity)
    arms = [_arm(name, sizes[name], scores, checkpoint, facts) for name in transcripts.arm_names]
    comparisons = _comparisons(scores, transcripts.arm_names)
    truth_sources = dict(Counter(page.truth_source for page in transcripts.pages))
    equivalence = None
    if evaluate.equivalence is not None:
        equivalence = measure_equivalence(
            scores, evaluate.equivalence, is_judged_by_model="model" in truth_sources
        )
    drafted = _drafts(drafts, evaluate, facts)
    checks = gate_checks(
        gate,
        arms[transcripts.arm_names.index("plan")],
        equivalence,
        None if drafted is None else drafted.overall,
    )
    pareto = run.load(Pareto) if (run.path / Pareto.FILE_NAME).is_file() else None
    notes = report_notes(
        arms,
        comparisons,
        checks,
        equivalence,
        has_fp8_cache=facts.has_fp8_cache,
        sensitivity=sensitivity,
        assignment=assignment,
        pareto=pareto,
        experts=_experts(run),
    )
    notes += draft_notes(drafted) + _engine_notes(run)
    worst = scores.worst_pages("plan", NUM_WORST_PAGES)
    images = save_images(worst)
    return Report(
        inputs=dict(inputs),
        model=facts.model,
        recipe_sha256=facts.recipe_sha256,
        truth_sources=truth_sources,
        num_bootstrap_samples=evaluate.num_bootstrap_samples,
        seed=facts.seed,
        runtimes=transcripts.runtimes,
        arms=arms,
        comparisons=comparisons,
        equivalence=equivalence,
        drafts=drafted,
        gate=checks,
        notes=notes,
        worst_pages=[_page_output(page, scores, images[page.page]) for page in worst],
        images={images[page.page]: FileRecord.of(run.path / images[page.page]) for page in worst},
        chain=_chain(run.path, has_drafts=drafts is not None),
    )


def _drafts(drafts: Drafts | None, evaluate: EvaluateSection, facts: RunFacts) -> DraftReport | None:
    if drafts is None:
        return None
    assert evaluate.drafter is not None, "whoever read with drafts knew with which"
    return measure_drafts(
        drafts, evaluate.drafter, num_resamples=evaluate.num_bootstrap_samples, seed=facts.seed
    )


def _engine_notes(run: RunFolder) -> list[str]:
    """Who rounded the weights, where it was not us."""
    is_there = (run.path / Rounding.FILE_NAME).is_file()
    engine = run.load(Rounding).engine if is_there else "ocrquant"
    if engine == "ocrquant":
        return []
    return [
        f"The weights were rounded by {engine} and are kept as they are: no step was held against another."
    ]


def _experts(run: RunFolder) -> list[ExpertStatistics]:
    return run.load(Statistics).experts if (run.path / Statistics.FILE_NAME).is_file() else []


def write_report(folder: Path | str, *, with_timings: bool = False) -> tuple[Path, Path]:
    """Writes ``report.md`` and ``report.html`` from the artefacts of a run folder, which may be in use.

    Args:
        folder: The run folder; it holds at least ``report.json`` and the images that it names.
        with_timings: Show how long the stages took. Without, equal artefacts give equal pages, however
            often the run was interrupted.

    Returns:
        Paths of both files.

    Raises:
        ArtifactError: The report is missing, or a file is malformed.
        OutputError: The folder is not writable.
    """
    folder = Path(folder)
    return write_pages(folder, Report.load(folder), with_timings=with_timings)


def write_pages(folder: Path, report: Report, *, with_timings: bool = False) -> tuple[Path, Path]:
    """The same for a report that is not saved yet."""
    material = Material.read(folder, report, with_timings=with_timings)
    paths = folder / "report.md", folder / "report.html"
    for path, text in zip(paths, (render_markdown(material), render_html(material)), strict=True):
        write_bytes(path, text.encode())
    return paths


def _arm(
    name: ArmName, size: ArmSize, scores: Scores, checkpoint: CheckpointRecord, facts: RunFacts
) -> ArmReport:
    is_plan = name == "plan"
    return ArmReport(
        name=name,
        num_groups=size.num_groups,
        bits_per_weight=checkpoint.bits_per_weight if is_plan else size.bits_per_weight,
        weight_bytes=checkpoint.weight_bytes if is_plan else size.weight_bytes,
        checkpoint_bytes={"plan": checkpoint.total_bytes, BASELINE: facts.source_bytes}.get(name),
        overall=scores.metrics(name),
        by_kind={kind: scores.metrics(name, kind) for kind in scores.kinds},
    )


def _comparisons(scores: Scores, arms: Sequence[ArmName]) -> list[Comparison]:
    """The plan against each uniform arm, over all pages and for each kind."""
    kinds = [None, *scores.kinds] if len(scores.kinds) > 1 else [None]
    uniform = [name for name in arms if name not in ("plan", BASELINE)]
    return [scores.comparison("plan", name, kind) for name in uniform for kind in kinds]


def _page_output(page: PageTranscripts, scores: Scores, image: str) -> PageOutput:
    return PageOutput(
        page=page.page,
        kind=page.kind,
        document=page.document,
        truth=page.truth,
        image=image,
        outputs={arm: output.text for arm, output in page.arms.items()},
        cer={arm: scores.page_cer(arm, page) for arm in page.arms},
    )


def _chain(folder: Path, *, has_drafts: bool) -> list[ChainLink]:
    # What an earlier evaluation read with drafts may still lie there.
    kinds: Sequence[type[Artifact]] = [
        kind for kind in _CHAIN if (folder / kind.FILE_NAME).is_file() and (has_drafts or kind is not Drafts)
    ]
    return [
        ChainLink(
            artifact=kind.kind(),
            sha256=sha256_file(folder / kind.FILE_NAME),
            inputs=kind.load(folder).inputs,
        )
        for kind in kinds
    ]
