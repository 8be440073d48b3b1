"""A drafter for the checkpoint of a run: answers and features, DFlash, DFlash2, and their acceptance.

Everything lies under ``drafter/`` of the run folder: ``features`` and ``training`` are kept so that the same
command goes on, ``dflash`` and ``dflash2`` are the results. Knows the order of the steps and what each
depends on; holds no arithmetic.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ocrquant.artifacts import CheckpointRecord, RunFolder, sha256_data
from ocrquant.distributed import ranks
from ocrquant.drafter.acceptance import measure_acceptance
from ocrquant.drafter.config import DrafterConfig
from ocrquant.drafter.design import design_drafter
from ocrquant.drafter.features import cache_features, claim_folder
from ocrquant.drafter.folder import load_drafter, save_drafter
from ocrquant.drafter.store import FeatureFolder
from ocrquant.drafter.target import TargetEnds, read_ends
from ocrquant.drafter.training import Schedule, Trainer
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.preparing import PageTask
from ocrquant.errors import ArtifactError, PagesError
from ocrquant.json_files import read_json
from ocrquant.pages import Page, page_digest
from ocrquant.pipeline.context import Context, pages_like
from ocrquant.pipeline.evaluated_drafter import DRAFTER_FOLDER
from ocrquant.recipe import DrafterSection, Recipe

__all__ = ["train_drafter"]

_REQUESTS = 32
"""Pages that the target reads at once."""
_SHOWN = 16
"""Held-out pages on which a training is watched; the result is measured on all of them."""


@dataclass(frozen=True, slots=True)
class _Lesson:
    """What all steps share.

    Attributes:
        context: The run.
        section: Of the recipe.
        ends: Of the target.
        folder: ``drafter`` of the run folder.
        inputs: What the features are made from.
    """

    context: Context
    section: DrafterSection
    ends: TargetEnds
    folder: Path
    inputs: dict[str, str]


def train_drafter(recipe: Recipe, *, device: str | None = None, adopt: bool = False) -> Path:
    """Trains the drafter of a recipe and returns its folder; goes on where it was stopped.

    Args:
        recipe: Resolved recipe, whose run folder holds the exported checkpoint.
        device: Device asked for on the command line; None follows the recipe.
        adopt: See `run_recipe`.

    Raises:
        ArtifactError: Nothing is exported yet.
        OcrQuantError: See `ocrquant.errors`.
    """
    with (
        ranks().together(),
        RunFolder.open(
            recipe.output, recipe_digest=recipe.digest(), recipe_text=recipe.to_yaml(), adopt=adopt
        ) as run,
    ):
        context = Context(recipe=recipe, run=run, device=device)
        section = recipe.drafter or DrafterSection()
        record = _checkpoint(run)
        ends = read_ends(context.model_folder)
        config = design_drafter(section, ends, read_json(context.model_folder / "config.json"))
        pages = _pages(recipe, section)
        inputs = {
            "checkpoint": run.digests.folder(run.path / record.folder),
            "pages": sha256_data([[page.split, page.kind, page_digest(page)] for page in pages]),
            "taps": sha256_data(list(config.target_layer_ids)),
            "answers": sha256_data([recipe.evaluate.max_new_tokens, context.prompts]),
        }
        lesson = _Lesson(context, section, ends, run.path / DRAFTER_FOLDER, inputs)
        _cache(lesson, run.path / record.folder, pages, config)
        found = _train(lesson, config, start=None)
        if section.design == "dflash2":
            second = config.as_second(
                rank=section.selector_rank, top_k=min(section.selector_top_k, config.vocab_size)
            )
            found = _train(lesson, second, start=found)
    return found


def _checkpoint(run: RunFolder) -> CheckpointRecord:
    try:
        return run.load(CheckpointRecord)
    except ArtifactError as error:
        raise ArtifactError(
            run.path / CheckpointRecord.FILE_NAME,
            expected="an exported checkpoint, whose answers a drafter learns from",
            given="none",
            fix="run ocrquant export with the same recipe first",
        ) from error


def _pages(recipe: Recipe, section: DrafterSection) -> list[Page]:
    asked = section.pages
    source = asked.source or recipe.pages.source
    return pages_like(recipe.pages, source, asked.num_pages, asked.num_heldout_pages)


def _cache(lesson: _Lesson, checkpoint: Path, pages: list[Page], config: DrafterConfig) -> None:
    """Features of both splits; the target is in memory only while something is missing."""
    root = lesson.folder / "features"
    is_done = root / "done"
    if claim_folder(root, lesson.inputs) and is_done.exists():
        _say("features    up to date")
        return
    _say(f"features    ... ({len(pages):,} pages)")
    runtime = load_runtime(
        checkpoint,
        RuntimeSettings(
            max_requests=_REQUESTS, device=str(lesson.context.place), prompts=lesson.context.prompts
        ),
    )
    for split in ("heldout", "calibration"):
        folder = root / split
        folder.mkdir(exist_ok=True)
        tasks = [
            PageTask(page.id, page.image, page.kind, lesson.context.recipe.pages.max_pixels)
            for page in pages
            if page.split == split
        ]
        cache_features(
            runtime,
            tasks,
            config.target_layer_ids,
            folder,
            hidden_size=config.hidden_size,
            max_tokens=lesson.context.recipe.evaluate.max_new_tokens,
            title=f"features of {split} pages",
        )
        if not len(FeatureFolder(folder)):
            raise PagesError(
                f"{split} pages for a drafter",
                expected="whole answers of the checkpoint",
                given=f"none on {len(tasks)} pages: all failed, ran in circles or were cut short",
                fix="raise evaluate.max_new_tokens, or look at what ocrquant run reads on them",
            )
    if ranks().is_first:
        is_done.touch()
    ranks().wait()


def _train(lesson: _Lesson, config: DrafterConfig, start: Path | None) -> Path:
    """One drafter: trained, measured on all held-out pages, and put where it is found."""
    name = "dflash2" if config.is_second else "dflash"
    schedule = _schedule(lesson.section, config)
    inputs = lesson.inputs | {
        "drafter": sha256_data(config.render()),
        "schedule": sha256_data(asdict(schedule)),
        "processes": str(ranks().count),
    }
    if start is not None:
        inputs["start"] = lesson.context.run.digests.folder(start)
    out, result = lesson.folder / "training" / name, lesson.folder / name
    root = lesson.folder / "features"
    is_same = claim_folder(out, inputs)
    if is_same and (out / "done").exists() and result.is_dir():
        _say(f"{name:<12}up to date -> {result}")
        return result
    heldout = FeatureFolder(root / "heldout")
    trainer = Trainer(
        config,
        lesson.ends,
        [root / "calibration"],
        list(heldout)[:: max(1, len(heldout) // _SHOWN)],
        out,
        schedule,
        start=start,
        device=str(lesson.context.place),
        say=lambda text: _say(f"{name:<12}{text}"),
    )
    trainer.train()
    if ranks().is_first:
        drafter = load_drafter(out / "drafter")
        found = measure_acceptance(drafter, heldout, lesson.ends.embedding, lesson.ends.head)
        acceptance = {kind: {way: a.record() for way, a in ways.items()} for kind, ways in found.items()}
        save_drafter(drafter, result, acceptance)
        (out / "done").touch()
        shown = {kind: {way: a["length"] for way, a in ways.items()} for kind, ways in acceptance.items()}
        _say(f"{name:<12}tokens a step on held-out pages {json.dumps(shown)} -> {result}")
    ranks().wait()
    return result


def _schedule(section: DrafterSection, config: DrafterConfig) -> Schedule:
    asked = section.training
    factor = asked.second_rate if config.is_second else 1.0
    return Schedule(
        num_steps=asked.num_second_steps if config.is_second else asked.num_steps,
        muon_rate=asked.muon_rate * factor,
        adam_rate=asked.adam_rate * factor,
        max_rows=asked.max_rows,
        max_anchors=asked.max_anchors,
        decay=asked.decay,
        seed=asked.seed,
    )


def _say(text: str) -> None:
    if ranks().is_first:
        print(text, file=sys.stderr, flush=True)
