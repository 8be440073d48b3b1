"""The table of stages: what each writes, what it depends on, and the one function that does it.

Knows names of inputs and which sections of the recipe matter to which stage. Knows no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ocrquant.artifacts import (
    Artifact,
    Assignment,
    CheckpointRecord,
    PageSet,
    Report,
    Rounding,
    Sensitivity,
    Statistics,
    sha256_data,
    sha256_file,
)
from ocrquant.assign import assign
from ocrquant.assign.grid import grid_plans
from ocrquant.calibrate import collect_statistics, round_groups
from ocrquant.distributed import ranks
from ocrquant.evaluate import EvaluatedModel, evaluate_run
from ocrquant.export import export_checkpoint
from ocrquant.pipeline.context import Context
from ocrquant.pipeline.evaluated_drafter import evaluated_drafter
from ocrquant.pipeline.transcribe import write_pages
from ocrquant.recipe import Recipe
from ocrquant.sensitivity import measure_sensitivity
from ocrquant.sensitivity.judge import PlanJudge

Inputs = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage.

    Attributes:
        name: Name on the command line and in messages.
        artifact: What it writes.
        reads: Artefacts of earlier stages that it reads.
        sections: Sections of the recipe that change its result.
        run: Does the work and saves the artefact.
        model: Whether the model's bytes are an input; false where they only reach it through earlier
        artefacts.
        is_shared: Whether several processes work on it; else the first does while the others wait.
    """

    name: str
    artifact: type[Artifact]
    reads: tuple[type[Artifact], ...]
    sections: tuple[str, ...]
    run: Callable[[Context, Inputs], object]
    model: bool = True
    is_shared: bool = False

    def inputs(self, context: Context) -> Inputs:
        """SHA-256 of everything that the stage would be made from now, by name."""
        found = {kind.kind(): context.run.digest(kind) for kind in self.reads}
        found["recipe"] = context.recipe.section_digest(*self.sections)
        if self.model:
            found["model"] = context.model_digest
        if self.artifact is PageSet:
            found |= _page_inputs(context)
        if self.artifact is Assignment:
            found |= assign_inputs(context.recipe)
        if self.artifact is Report and (drafter := evaluated_drafter(context.recipe)) is not None:
            found["drafter"] = context.run.digests.folder(drafter)
        return found


def _page_inputs(context: Context) -> Inputs:
    """The source; and where the model has to transcribe, what its answers depend on."""
    found = {"source": context.source_digest}
    if context.needs_transcription:
        section = context.recipe.evaluate
        settings = (
            context.recipe.section_digest("model"),
            section.max_new_tokens,
            section.batch_size,
        )
        # Margins, arms and resamples change no answer.
        found |= {"model": context.model_digest, "answers": sha256_data(settings)}
    return found


def assign_inputs(recipe: Recipe) -> Inputs:
    """What a plan is made from beside scores and its own section: the cache's format, and a cost table."""
    found = {"kv_cache": sha256_data(recipe.export.kv_cache)}
    target = recipe.assign.target
    if target is not None and target.table is not None:
        found["cost_table"] = sha256_file(Path(target.table))
    return found


def _statistics(context: Context, inputs: Inputs) -> None:
    pages = context.pages("calibration")
    collect_statistics(context.run, context.document(), pages, context.recipe.statistics, inputs)


def _rounding(context: Context, inputs: Inputs) -> None:
    engine = context.recipe.weights.engine
    if engine != "ocrquant":
        # Another toolkit's session is no part of ours: one process runs it while the others wait.
        if not ranks().is_first:
            return
        from ocrquant.toolkits.rounding import round_by_toolkit

        round_by_toolkit(
            engine,
            context.run,
            context.fresh_document,
            context.pages("calibration"),
            context.run.load(Statistics),
            context.recipe.sensitivity.candidates,
            inputs,
        )
        return
    round_groups(
        context.run,
        context.document(),
        context.pages("calibration"),
        context.run.load(Statistics),
        context.recipe.weights,
        context.recipe.sensitivity.candidates,
        context.recipe.statistics,
        inputs,
    )


def _sensitivity(context: Context, inputs: Inputs) -> None:
    measure_sensitivity(
        context.run,
        context.document(),
        context.pages("calibration"),
        context.run.load(Rounding),
        context.recipe.sensitivity,
        context.recipe.search,
        inputs,
        grid_plans,
    )


def _assign(context: Context, inputs: Inputs) -> None:
    section, sensitivity = context.recipe.assign, context.run.load(Sensitivity)
    kv_cache = context.recipe.export.kv_cache
    if not section.repair.max_measurements:
        assign(context.run, sensitivity, section, inputs, kv_cache=kv_cache)
        return
    with PlanJudge(
        context.run,
        context.document(),
        context.pages("calibration"),
        context.run.load(Rounding),
        context.recipe.sensitivity,
        sensitivity.inputs,
    ) as judge:
        assign(context.run, sensitivity, section, inputs, kv_cache=kv_cache, judge=judge)


def _export(context: Context, inputs: Inputs) -> None:
    record = export_checkpoint(
        context.run.path,
        context.recipe.export,
        source=context.model_folder,
        model_map=context.map,
        assignment=context.run.load(Assignment),
        rounding=context.run.load(Rounding),
        inputs=inputs,
    )
    context.run.save(record)


def _evaluate(context: Context, inputs: Inputs) -> None:
    evaluate_run(
        context.run,
        context.pages("heldout"),
        context.recipe.evaluate,
        inputs,
        gate=context.recipe.gate,
        model=EvaluatedModel(
            name=context.recipe.model.path,
            source=context.model_folder,
            device=context.place,
            prompts=context.prompts,
            allow_remote_code=context.recipe.model.allow_remote_code,
            allow_generic=context.recipe.model.allow_generic,
            drafter=evaluated_drafter(context.recipe),
        ),
        recipe_sha256=context.recipe.digest(),
        seed=context.recipe.pages.seed,
    )


STAGES = (
    Stage(name="pages", artifact=PageSet, reads=(), sections=("pages",), run=write_pages, model=False),
    Stage(
        name="statistics",
        artifact=Statistics,
        reads=(PageSet,),
        sections=("model", "statistics"),
        run=_statistics,
        is_shared=True,
    ),
    Stage(
        name="rounding",
        artifact=Rounding,
        reads=(PageSet, Statistics),
        sections=("model", "statistics", "weights", "sensitivity"),
        run=_rounding,
        is_shared=True,
    ),
    Stage(
        name="sensitivity",
        artifact=Sensitivity,
        reads=(PageSet, Rounding),
        sections=("model", "sensitivity", "search"),
        run=_sensitivity,
        is_shared=True,
    ),
    Stage(
        name="assign",
        artifact=Assignment,
        reads=(Sensitivity,),
        sections=("assign",),
        run=_assign,
        model=False,
        is_shared=True,
    ),
    Stage(
        name="export",
        artifact=CheckpointRecord,
        reads=(Assignment, Rounding),
        sections=("export",),
        run=_export,
    ),
    Stage(
        name="evaluate",
        artifact=Report,
        reads=(PageSet, Rounding, Sensitivity, Assignment, CheckpointRecord),
        sections=("model", "pages", "evaluate", "gate"),
        run=_evaluate,
    ),
)
STAGE_NAMES = tuple(stage.name for stage in STAGES)
