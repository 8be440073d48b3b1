"""One run from its recipe: check, then every stage that is not up to date.

Knows order and messages. A stage that is up to date is skipped; the gate is held against the report each
time. Several processes that share a run go from stage to stage together; what cannot be shared is done by the
first while the others wait.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ocrquant.artifacts import RunFolder
from ocrquant.distributed import ranks
from ocrquant.env import num_threads
from ocrquant.errors import RecipeError
from ocrquant.pipeline.check import check_recipe
from ocrquant.pipeline.context import Context
from ocrquant.pipeline.stages import STAGE_NAMES, STAGES, Stage
from ocrquant.recipe import Recipe


def run_recipe(
    recipe: Recipe, *, device: str | None = None, adopt: bool = False, until: str = STAGE_NAMES[-1]
) -> Path:
    """Runs a recipe up to a stage and returns the run folder.

    Args:
        recipe: Resolved recipe.
        device: Device asked for on the command line; None follows the recipe.
        adopt: Go on with a run folder that another recipe made.
        until: Name of the last stage.

    Raises:
        OcrQuantError: See `ocrquant.errors`; what is finished stays, and the same command goes on from there.
    """
    if until not in STAGE_NAMES:
        raise RecipeError(
            "--until", expected=f"one of {', '.join(STAGE_NAMES)}", given=until, fix="correct the name"
        )
    _set_up_libraries()
    with ranks().together():
        if ranks().is_first:
            _say(check_recipe(recipe, device=device).render())
        with RunFolder.open(
            recipe.output, recipe_digest=recipe.digest(), recipe_text=recipe.to_yaml(), adopt=adopt
        ) as run:
            context = Context(recipe=recipe, run=run, device=device)
            if context.residency == "block":
                _say("residency   one decoder block in memory at a time")
            for stage in STAGES[: STAGE_NAMES.index(until) + 1]:
                _run_stage(stage, context)
    _say(f"done      {recipe.output}")
    return Path(recipe.output)


def _run_stage(stage: Stage, context: Context) -> None:
    here, inputs = ranks(), stage.inputs(context)
    # The last stage looks for itself: a report that is up to date is still held against its gate.
    current = stage is not STAGES[-1] and context.run.is_current(stage.artifact, inputs)
    if here.gather(current)[0]:
        _say(f"{stage.name:<12}up to date")
        return
    _say(f"{stage.name:<12}...")
    begin = time.perf_counter()
    if stage.is_shared or here.is_first:
        stage.run(context, inputs)
    here.wait()
    seconds = time.perf_counter() - begin
    context.run.record_timing(stage.name, seconds)
    _say(f"{stage.name:<12}{seconds:.1f} s -> {context.run.path / stage.artifact.FILE_NAME}")


def _set_up_libraries() -> None:
    import torch
    import transformers

    # Its notes on kernels that are not installed are not for people who quantize.
    transformers.utils.logging.set_verbosity_error()
    if (threads := num_threads()) is not None:
        torch.set_num_threads(threads)


def _say(text: str) -> None:
    if ranks().is_first:
        print(text, file=sys.stderr, flush=True)
