"""Another budget for a run folder that has its scores: what the plan would be, and in what it differs.

Knows run folders and words. Loads no model and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ocrquant.artifacts import Assignment, Sensitivity
from ocrquant.assign.changes import group_changes
from ocrquant.assign.explain import explain
from ocrquant.assign.stage import choose_formats
from ocrquant.assign.terms import terms_of
from ocrquant.errors import RecipeError
from ocrquant.recipe import load_recipe
from ocrquant.recipe.imports import parse_yaml

__all__ = ["budget_override", "explain_run", "refuse_for_run", "replan"]

_OPTIONS = {
    "bits_per_weight": "--bits",
    "weight_bytes": "--bytes",
    "max_kl": "--max-kl",
    "step_us": "--step-us",
}
_SHOWN_CHANGES = 40


def budget_override(budget: Mapping[str, float | None], overrides: Sequence[str] = ()) -> list[str]:
    """The assignment to a recipe that options for a budget mean; none where none was given.

    Args:
        budget: Name in the recipe -> value, or None.
        overrides: ``KEY=VALUE`` as for ``--set``, which may set the budget as well.

    Raises:
        RecipeError: There is more than one.
    """
    given = {name: value for name, value in budget.items() if value is not None}
    options = [_OPTIONS[name] for name in given]
    if given:
        options += [f"--set {text}" for text in overrides if _sets_budget(text)]
    if len(options) > 1:
        raise RecipeError("budget", expected="one limit", given=" and ".join(options), fix="keep one of them")
    return [f"assign.budget={{{name}: {value!r}}}" for name, value in given.items()]


def refuse_for_run(options: Mapping[str, bool], overrides: Sequence[str]) -> None:
    """Refuses what has no meaning for a run folder, whose pages and scores stay what they are.

    Args:
        options: Name of an option that only a recipe takes -> whether it was given.
        overrides: ``KEY=VALUE`` as for ``--set``; a plan is decided by ``assign``, and by
            ``export.kv_cache``.

    Raises:
        RecipeError: There is such an option, or such a key.
    """
    given = [name for name, is_given in options.items() if is_given]
    given += [key for key in (text.partition("=")[0] for text in overrides) if not _decides_plan(key)]
    if given:
        raise RecipeError(
            "a run folder",
            expected="a budget, and keys of assign or export.kv_cache",
            given=", ".join(given),
            fix="name the recipe instead, or leave it out",
        )


def replan(folder: Path, overrides: Sequence[str], *, layer: str | None) -> str:
    """The plan of a run folder under its recipe with some values replaced, in words.

    Swaps are left out: they need the model, and the stage itself.

    Args:
        folder: A run folder with ``sensitivity.json``.
        overrides: ``KEY=VALUE`` as for ``--set``.
        layer: Group or linear to explain; None for none.

    Raises:
        ArtifactError: There are no scores, or a file is malformed.
        BudgetError: The budget cannot be reached.
        PatternError: There is no such layer, or a pattern or kind of the recipe matches nothing.
        RecipeError: A value does not fit.
    """
    recipe = load_recipe(folder, overrides)
    is_repaired = recipe.assign.repair.max_measurements > 0
    sensitivity = Sensitivity.load(folder)
    terms = terms_of(recipe.assign, recipe.export.kv_cache)
    present = Assignment.load(folder) if (folder / Assignment.FILE_NAME).is_file() else None
    plan = choose_formats(sensitivity, recipe.assign.budget, {}, terms=terms)
    lines = [*_sums("plan", plan)]
    if present is not None:
        lines += [*_sums("present", present), *_differences(sensitivity, present, plan)]
    if is_repaired:
        lines.append(
            "repair    left out: run `ocrquant assign RECIPE --adopt` for swaps, which need the model"
        )
    if layer is not None:
        lines += ["", explain(sensitivity, plan, layer, terms)]
    return "\n".join(lines)


def explain_run(recipe: Path, overrides: Sequence[str], layer: str) -> str:
    """Why a layer has its format in the plan that a finished run of a recipe holds.

    Args:
        recipe: The recipe.
        overrides: ``KEY=VALUE`` as for ``--set``.
        layer: Group or linear.

    Raises:
        ArtifactError: There is no plan, or a file is malformed.
        PatternError: There is no such layer.
    """
    resolved = load_recipe(recipe, overrides)
    folder = Path(resolved.output)
    terms = terms_of(resolved.assign, resolved.export.kv_cache)
    return explain(Sensitivity.load(folder), Assignment.load(folder), layer, terms)


def _sets_budget(override: str) -> bool:
    key, _, value = override.partition("=")
    if key.strip() == "assign":
        section = parse_yaml(value, override)
        return isinstance(section, dict) and "budget" in section
    return key.strip().split(".")[:2] == ["assign", "budget"]


def _decides_plan(key: str) -> bool:
    return key.split(".")[0] == "assign" or key == "export.kv_cache"


def _sums(name: str, plan: Assignment) -> list[str]:
    cache = f", keys and values {plan.kv_cache}"
    counted = f" of {plan.kv_bytes:,} counted bytes" if plan.kv_bytes is not None else ""
    lines = [
        f"{name:<10}{plan.bits_per_weight:.4g} bits a weight, {plan.weight_bytes:,} bytes, "
        f"predicted loss {plan.predicted_loss:.4g} nats a token by {plan.score} scores{cache}{counted}"
    ]
    if plan.step is not None:
        step = plan.step
        lines.append(f"{'step':<10}{step.us:.5g} us, in bf16 {step.bf16_us:.5g} us ({step.load})")
        lines += [f"{'note':<10}{note}" for note in step.notes]
    return lines


def _differences(sensitivity: Sensitivity, present: Assignment, plan: Assignment) -> list[str]:
    changes = group_changes(sensitivity, present, plan)
    lines = [f"{'differs':<10}{len(changes)} of {len(plan.groups)} groups"]
    lines += [
        f"  {change.group}: {change.before} -> {change.after}, {change.extra_bytes:+,} bytes, "
        f"{change.extra_loss:+.3g} nats a token"
        for change in changes[:_SHOWN_CHANGES]
    ]
    if len(changes) > _SHOWN_CHANGES:
        lines.append(f"  and {len(changes) - _SHOWN_CHANGES} more")
    if present.kv_cache != plan.kv_cache:
        lines.append(f"  keys and values: {present.kv_cache} -> {plan.kv_cache}")
    return lines
