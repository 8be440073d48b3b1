"""An option that changes nothing is a bug: every field of a recipe is read somewhere outside the schema."""

import ast
from pathlib import Path

import pytest

from ocrquant.recipe import Recipe
from ocrquant.recipe.sections import Section

PACKAGE = Path(__file__).parents[2] / "ocrquant"


def fields(section: type[Section], prefix: str = "") -> list[str]:
    """Dotted names of all values."""
    found = []
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        found += fields(nested[0], f"{prefix}{name}.") if nested else [prefix + name]
    return found


def names_read(source: str) -> set[str]:
    """Every attribute that a source reads from something."""
    nodes = ast.walk(ast.parse(source))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


# The four limits are read through `Budget.kind` and `Budget.value`.
THROUGH_A_PROPERTY = {
    f"assign.budget.{name}" for name in ("bits_per_weight", "weight_bytes", "max_kl", "step_us")
}


@pytest.fixture(scope="module")
def read():
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "recipe"]
    return set().union(*(names_read(path.read_text(encoding="utf-8")) for path in files))


@pytest.mark.parametrize("field", [f for f in fields(Recipe) if f not in THROUGH_A_PROPERTY])
def test_field_is_read(field, read):
    assert field.rsplit(".", 1)[-1] in read


def test_limits_are_read(read):
    assert {"budget", "value", "kind"} <= read


def test_fields_of_optional_sections_are_listed():
    assert {"gate.max_kl", "assign.budget.max_kl", "output"} <= set(fields(Recipe))
    assert names_read("x.y = recipe.gate.max_kl; getattr(a, 'b')") == {"gate", "max_kl"}
