"""A plan of a run folder in the words of another toolkit.

Knows run folders. Loads no weights: of the model only headers are read, for the names of modules in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ocrquant.adapters import model_folder, read_model_map
from ocrquant.artifacts import Assignment, Sensitivity
from ocrquant.assign import choose_formats, terms_of
from ocrquant.errors import RecipeError
from ocrquant.recipe import load_recipe
from ocrquant.toolkits.native import Toolkit, native_recipe

__all__ = ["plan_as", "refuse_with_as"]


def plan_as(folder: Path, overrides: Sequence[str], toolkit: Toolkit) -> str:
    """The recipe of another toolkit that gives every linear the format of the plan.

    Args:
        folder: A run folder with its plan; with overrides only its scores are needed.
        overrides: ``KEY=VALUE`` as for ``--set``; where there are any, the plan is the one that they give,
            without swaps.
        toolkit: Who is to read it.

    Raises:
        RecipeError: The folder is none, or a value does not fit.
        ArtifactError: There are no scores or no plan, or a file is malformed.
        BudgetError: The budget cannot be reached.
        ModelError: The model of the recipe is not there any more.
    """
    if not folder.is_dir():
        fix = "run the recipe, then name its output folder"
        raise RecipeError("--as", expected="a run folder", given=folder, fix=fix)
    recipe, sensitivity = load_recipe(folder, overrides), Sensitivity.load(folder)
    plan = Assignment.load(folder) if not overrides else None
    if plan is None:
        terms = terms_of(recipe.assign, recipe.export.kv_cache)
        plan = choose_formats(sensitivity, recipe.assign.budget, {}, terms=terms)
    section = recipe.model
    model_map = read_model_map(
        model_folder(section.path), section.allow_remote_code, allow_generic=section.allow_generic
    )
    formats = {
        model_map.module_path(linear): plan.groups[group.name]
        for group in sensitivity.groups
        for linear in group.linears
    }
    return native_recipe(toolkit, formats)


def refuse_with_as(options: Mapping[str, object]) -> None:
    """Refuses options that would have no effect on a recipe of another toolkit.

    Args:
        options: What was given, by option.

    Raises:
        RecipeError: Some was.
    """
    if given := [name for name, value in options.items() if value]:
        expected = "a run folder and its budget alone"
        raise RecipeError("--as", expected=expected, given=given[0], fix=f"leave {given[0]} out")
