"""The recipe: one YAML file that says the whole way from a model and pages to a checkpoint and a report.

Knows the file's form. Does not know models, pages or stages.
"""

from __future__ import annotations

from ocrquant.recipe.diff import Difference, recipe_differences
from ocrquant.recipe.drafter_section import DrafterSection
from ocrquant.recipe.load import RECIPE_NAME, build_recipe, load_recipe
from ocrquant.recipe.schema import Recipe
from ocrquant.recipe.sections import Budget, GateSection

__all__ = [
    "RECIPE_NAME",
    "Budget",
    "Difference",
    "DrafterSection",
    "GateSection",
    "Recipe",
    "build_recipe",
    "load_recipe",
    "recipe_differences",
]
