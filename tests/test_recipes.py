"""Every shipped recipe loads, stands in the table with its budget, and is named after what it holds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic.fields import FieldInfo

from ocrquant.adapters.families import FAMILIES
from ocrquant.recipe import Recipe, load_recipe
from ocrquant.recipe.sections import Section

ROOT = Path(__file__).parent.parent / "recipes"
README = (ROOT / "README.md").read_text(encoding="utf-8")

RECIPES = sorted(path for path in ROOT.glob("*/*.yaml") if path.parent.name != "units")
UNITS = sorted((ROOT / "units").rglob("*.yaml"))
BY_MODEL_TYPE = [path for path in RECIPES if path.parent.name != "general"]
PURPOSES = {"quickstart", "ci-gate", "equivalence", "latency", "drafter"}
BUDGET_UNITS = {
    "bits_per_weight": "bits per weight",
    "max_kl": "nats per token",
    "weight_bytes": "bytes",
    "step_us": "µs per decode step",
}
# Said in words: how many pages to calibrate on and to hold out, and to hold back.
IN_WORDS = {
    "pages": ("num_calibration_pages", "num_heldout_pages"),
    "weights": ("num_held_back_pages",),
    "drafter": ("num_pages", "num_heldout_pages"),
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_recipe_loads_and_its_resolved_form_loads_again(path, tmp_path):
    recipe = load_recipe(path)
    resolved = tmp_path / "recipe.yaml"
    resolved.write_text(recipe.to_yaml(), encoding="utf-8")
    assert load_recipe(resolved) == recipe
    assert load_recipe(resolved).digest() == recipe.digest()


def test_table_lists_exactly_the_recipes_with_their_budgets():
    rows = re.findall(r"^\| \[(\S+?)\]\((\S+?)\) \|[^|]+\| ([\d.]+) ([^|]+?) \|$", README, re.MULTILINE)
    assert [row[0] for row in rows] == [row[1] for row in rows]
    assert sorted(row[0] for row in rows) == [name(path) for path in RECIPES]
    for path, _, value, unit in rows:
        budget = load_recipe(ROOT / path).assign.budget
        assert (float(value), unit) == (budget.value, BUDGET_UNITS[budget.kind])


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_name_tells_the_content(path):
    if path.stem in PURPOSES:
        return
    formats = re.fullmatch(r"((?:nvfp4|fp8)(?:-fp8)?)-mixed", path.stem)
    assert formats, f"{path.stem} is neither FORMATS-mixed nor one of {PURPOSES}"
    assert formats[1].split("-") == list(load_recipe(path).sensitivity.candidates)


def test_output_folders_are_distinct():
    outputs = [load_recipe(path).output for path in RECIPES]
    assert len(set(outputs)) == len(outputs)


@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_unit_is_imported_by_a_recipe(unit):
    imported = name(unit).removesuffix(".yaml")
    assert any(imported in path.read_text(encoding="utf-8") for path in RECIPES)


def own_sections(path: Path) -> set[str]:
    """Sections that a recipe or its units state, the recipe that it builds on left out."""
    text = path.read_text(encoding="utf-8")
    found = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    for unit in re.findall(r"\bunits/[\w/-]+", text):
        found |= own_sections(ROOT / f"{unit}.yaml")
    return found


@pytest.mark.parametrize("path", BY_MODEL_TYPE, ids=name)
def test_recipes_for_a_model_type_only_state_differences(path):
    base = load_recipe(ROOT / f"general/{path.name}").model_dump()
    recipe = load_recipe(path).model_dump()
    assert {section for section in base if base[section] != recipe[section]} == own_sections(path)


def test_there_is_a_recipe_for_every_family_and_none_for_another():
    import transformers

    model_types = {getattr(transformers, family).config_class.model_type for family in FAMILIES}
    assert {path.parent.name for path in BY_MODEL_TYPE} == model_types


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_recipe_says_what_is_different_and_how_it_is_run(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    if path.stem != "quickstart":
        assert (
            f"ocrquant calibrate recipes/{name(path)} --set model.path=MODEL --set pages.source=PAGES" in text
        )


def fields(section: type[Section]) -> Iterator[str]:
    """Names of all keys of a section and of the sections in it."""
    for field_name, field in section.model_fields.items():
        yield field_name
        for nested in sections_of(field):
            yield from fields(nested)


def sections_of(field: FieldInfo) -> list[type[Section]]:
    kinds = [field.annotation, *get_args(field.annotation)]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]


def undocumented(section: str, text: str) -> list[str]:
    """Keys of a section that a text does not name."""
    known = [key for nested in sections_of(Recipe.model_fields[section]) for key in fields(nested)]
    words = set(re.findall(r"\w+", text))
    return [key for key in known if key not in words and key not in IN_WORDS.get(section, ())]


def test_readme_describes_every_section_and_every_key():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", README, re.MULTILINE))
    assert list(rows) == list(Recipe.model_fields)
    plan = README.split("### The plan")[1]
    for section, row in rows.items():
        assert undocumented(section, row + (plan if section == "assign" else "")) == []


def test_a_key_that_is_not_described_is_found():
    named = (
        "`max_cer_increase`, `max_worst_kind_cer_increase`, `require_equivalence`, `min_acceptance_length`"
    )
    assert undocumented("gate", named) == ["max_kl"]
    assert "max_measurements" in undocumented("assign", "`budget` and `repair`")
