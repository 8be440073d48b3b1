"""Imports go down only, and parts of one layer never import one another."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ocrquant"

LAYERS = [
    {"", "errors"},  # "" is the package itself
    {"env"},
    {
        "distributed",
        "formats",
        "json_files",
        "metrics",
        "progress",
        "prompts",
        "stacked_experts",
        "stored_parameter",
        "tensor_file",
    },
    {"cost", "kernels", "recipe", "artifacts"},
    {"pages", "adapters", "rounding", "simulate", "checkpoint", "models"},
    {"calibrate", "sensitivity", "assign", "export", "engine", "pico", "toolkits", "verify"},
    {"evaluate", "bench", "drafter", "run", "search"},
    {"pipeline"},  # runs every stage, evaluation included
    {"cli"},
    {"__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
# The engine sees a checkpoint and nothing else: the view that any server has.
FORBIDDEN = {("engine", "recipe"), ("engine", "artifacts")}


def part_of(module: str) -> str:
    """The part of the package that a module belongs to: ``recipe`` for ``ocrquant.recipe.load``."""
    steps = module.split(".")
    return steps[1] if len(steps) > 1 else ""


def imported_modules(source: str, module: str, *, is_package: bool) -> set[str]:
    """Every module of the package that a source imports anywhere, also inside functions."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from ocrquant import x` takes either a part or a name of the package itself, such as
            # __version__.
            names = {alias.name for alias in node.names} if origin == "ocrquant" else set()
            found |= {f"ocrquant.{name}" if name in LEVEL else "ocrquant" for name in names} or {origin}
    return {name for name in found if name == "ocrquant" or name.startswith("ocrquant.")}


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Sentences for the imports of a source that the rule forbids."""
    importer = part_of(module)
    if importer not in LEVEL:
        return [f"{module} is in no layer"]
    found = []
    for name in sorted(imported_modules(source, module, is_package=is_package)):
        imported = part_of(name)
        if imported in (importer, ""):
            continue
        if LEVEL.get(imported, len(LAYERS)) >= LEVEL[importer]:
            found.append(f"{module} imports {name}")
        if (importer, imported) in FORBIDDEN:
            found.append(f"{module} must not know {imported}")
    return found


def module_name(path: Path) -> str:
    steps = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(steps[:-1] if steps[-1] == "__init__" else steps)


def test_imports_go_down_only():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found += violations(source, module_name(path), is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ocrquant.formats.fp8", "import ocrquant.recipe"),  # up
        ("ocrquant.artifacts.base", "from ocrquant.recipe import Recipe"),  # sideways
        ("ocrquant.recipe.load", "from ocrquant import artifacts"),  # sideways, through the package
        ("ocrquant.recipe.load", "from ..artifacts import base"),  # relative
        ("ocrquant.recipe.load", "from .. import artifacts"),  # relative, through the package
        ("ocrquant.errors", "from ocrquant import env"),  # sideways at the bottom
        (
            "ocrquant.assign.solve",
            "def f():\n    from ocrquant.sensitivity import score",
        ),  # hidden in a function
        ("ocrquant.engine.engine", "import ocrquant.artifacts"),  # down, but forbidden
        ("ocrquant.helpers", "import os"),  # a part without a layer
        ("ocrquant.cli", "from ocrquant.helpers import x"),  # the same from the other side
    ],
)
def test_planted_fault_is_found(module, source):
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ocrquant.recipe.load", "from ocrquant.errors import RecipeError\nfrom . import schema\nimport os"),
        ("ocrquant.artifacts.base", "from ocrquant import __version__"),
        ("ocrquant.pipeline", "from ocrquant import calibrate, export"),
        ("ocrquant.cli", "from ocrquant.pipeline import run"),
        ("ocrquant.pico.train", "import ocrquants.other"),
    ],
)
def test_allowed_import_passes(module, source):
    assert not violations(source, module)


def test_a_package_resolves_relative_imports_from_itself():
    assert imported_modules("from .load import x", "ocrquant.recipe", is_package=True) == {
        "ocrquant.recipe.load"
    }
