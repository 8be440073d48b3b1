"""A plan under another budget, put into a run folder that has its scores.

Knows the stage that writes plans. Loads no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ocrquant.artifacts import Assignment, RunFolder
from ocrquant.pipeline.context import Context
from ocrquant.pipeline.stages import STAGES
from ocrquant.recipe import load_recipe

__all__ = ["write_plan"]

_NO_REPAIR = "assign.repair={max_measurements: 0}"


def write_plan(folder: Path, overrides: Sequence[str]) -> str:
    """Runs the stage of the plan alone, under the folder's recipe with some values replaced.

    The recipe goes into the folder too, without a repair, which needs the model: later stages go on from it.

    Args:
        folder: A run folder with ``sensitivity.json``.
        overrides: ``KEY=VALUE`` as for ``--set``.

    Returns:
        What was written, in words.

    Raises:
        OcrQuantError: See `ocrquant.assign.assign`; also a process that is using the folder.
    """
    recipe = load_recipe(folder, [*overrides, _NO_REPAIR])
    stage = next(stage for stage in STAGES if stage.artifact is Assignment)
    with RunFolder.open(
        folder, recipe_digest=recipe.digest(), recipe_text=recipe.to_yaml(), adopt=True
    ) as run:
        context = Context(recipe=recipe, run=run)
        stage.run(context, stage.inputs(context))
    path = folder / Assignment.FILE_NAME
    return f"written   {path}; go on with `ocrquant calibrate {folder / 'recipe.yaml'}`"
