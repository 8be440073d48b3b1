"""Every shipped recipe loads, stands in the table with its budget, and is named after what it holds."""

import re
from pathlib import Path

import pytest

from ocrquant.recipe import Recipe, load_recipe
from ocrquant.recipe.sections import Section

ROOT = Path(__file__).parent.parent / "recipes"
README = (ROOT / "README.md").read_text(encoding="utf-8")

RECIPES = sorted(path for path in ROOT.glob("*/*.yaml") if path.parent.name != "units")
UNITS = sorted((ROOT / "units").rglob("*.yaml"))
PURPOSES = {"quickstart", "ci-gate"}
BUDGET_UNITS = {"bits_per_weight": "bits per weight", "max_kl": "nats per token", "weight_bytes": "bytes"}


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


def test_recipes_for_an_architecture_only_state_differences():
    base = load_recipe(ROOT / "general/nvfp4-fp8-mixed.yaml").model_dump()
    text = (ROOT / "qwen3_5/nvfp4-fp8-mixed.yaml").read_text(encoding="utf-8")
    recipe = load_recipe(ROOT / "qwen3_5/nvfp4-fp8-mixed.yaml").model_dump()
    changed = {section for section in base if base[section] != recipe[section]}
    assert changed == set(re.findall(r"^(\w+):", text, re.MULTILINE))


def test_readme_describes_every_section_and_every_field():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", README, re.MULTILINE))
    assert list(rows) == list(Recipe.model_fields)
    for section, field in Recipe.model_fields.items():
        kinds = [
            k for k in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(k, type)
        ]
        fields = [f for kind in kinds if issubclass(kind, Section) for f in kind.model_fields]
        missing = [f for f in fields if f not in rows[section] and f != "num_held_back_pages"]
        unmentioned = [f for f in missing if not (section == "pages" and f.startswith("num_"))]
        assert not unmentioned, f"{section}: {unmentioned}"
