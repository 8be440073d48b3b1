"""From a file and the command line to a checked recipe.

Knows how to name a mistake: the key, what was expected, what was given, and the nearest name. Does not know
what any key is for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ocrquant.errors import RecipeError, dotted_key
from ocrquant.recipe.imports import parse_yaml, read_resolved
from ocrquant.recipe.schema import Recipe

__all__ = ["RECIPE_NAME", "build_recipe", "load_recipe"]

RECIPE_NAME = "recipe.yaml"
"""Of the recipe that made a run folder, inside it."""

_OVERRIDE = re.compile(r"(?P<key>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=(?P<value>.*)", re.DOTALL)

# Where the validator's own words would not read well after "expected".
_EXPECTED = {
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "too_short": "at least {min_length} of them",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "dict_type": "a mapping",
    "list_type": "a list",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe file.

    Args:
        path: The file, or a run folder, which holds the recipe that made it.
        overrides: Assignments such as ``pages.seed=1`` that replace what the file says; the value is YAML.

    Raises:
        RecipeError: The file is missing, a key is unknown, a value out of range, or an import cannot be
            resolved.
    """
    path = Path(path)
    if path.is_dir():
        path = path / RECIPE_NAME
    data = read_resolved(path)
    if not isinstance(data, dict):
        given = f"a {type(data).__name__}" if data is not None else "nothing"
        raise RecipeError(path, expected="a mapping of sections", given=given, fix="name a recipe")
    for override in overrides:
        data = _apply(data, override)
    return build_recipe(data, path)


def build_recipe(data: dict[str, Any], thing: object) -> Recipe:
    """Checks plain data against the schema.

    Args:
        data: What the recipe says, imports resolved.
        thing: What to call it in an error.

    Raises:
        RecipeError: A key is unknown or missing, or a value out of range.
    """
    try:
        return Recipe(**data)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False), thing) from error


def _apply(data: dict[str, Any], override: str) -> dict[str, Any]:
    match = _OVERRIDE.fullmatch(override.strip())
    if match is None:
        raise RecipeError(
            f"--set {override}",
            expected="KEY=VALUE",
            given="another form",
            fix="write for example pages.seed=1",
        )
    value = parse_yaml(match["value"], f"--set {override}")
    *sections, last = match["key"].split(".")
    result = node = dict(data)
    for name in sections:
        child = node.get(name)
        if not (child is None or isinstance(child, dict)):
            raise RecipeError(
                f"--set {override}",
                expected=f"a section {name}",
                given=repr(child),
                fix="set the key above it",
            )
        node[name] = dict(child or {})
        node = node[name]
    node[last] = value
    return result


def _explain(errors: list[ErrorDetails], thing: object) -> RecipeError:
    # An unknown key often leaves a required one missing: the typing error is the one to name.
    first = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    key = dotted_key(step for step in first["loc"] if step != "[key]")
    place = f"{thing}: {key}" if key else thing
    if first["type"] == "extra_forbidden":
        fields, near = _nearest(first["loc"])
        fix = f"did you mean {near}?" if near else "remove it"
        return RecipeError(place, expected=f"one of {', '.join(fields)}", given="an unknown key", fix=fix)
    if first["type"] == "missing":
        return RecipeError(place, expected="a value", given="nothing", fix="add the key")
    context = first.get("ctx", {})
    if first["type"] == "rule":
        return RecipeError(place, expected=context["expected"], given=context["given"], fix=context["fix"])
    template = _EXPECTED.get(first["type"])
    expected = template.format(**context) if template else first["msg"].removeprefix("Input should be ")
    return RecipeError(place, expected=expected, given=_shorten(first["input"]), fix="correct the value")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _nearest(location: tuple[str | int, ...]) -> tuple[list[str], str | None]:
    """The keys that are known where an unknown one was found, and the nearest name in the whole recipe."""
    *parents, unknown = (str(step) for step in location)
    section: type[BaseModel] | None = Recipe
    for name in parents:
        section = _section_of(section, name) if section else None
    fields = list(section.model_fields) if section else []
    near = difflib.get_close_matches(unknown, fields, n=1) or [f for f in fields if unknown in f]
    if near:
        return fields, near[0]
    # Of several keys of one name the least deep one, and the first of those.
    deepest_first = sorted(reversed(list(_paths(Recipe))), key=lambda path: -path.count("."))
    elsewhere = {path.rsplit(".", 1)[-1]: path for path in deepest_first}
    near = difflib.get_close_matches(unknown, elsewhere, n=1, cutoff=0.75)
    return fields, elsewhere[near[0]] if near else None


def _section_of(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model behind a field, also where the field may be None."""
    field = section.model_fields.get(name)
    if field is None:
        return None
    choices: Iterable[Any] = get_args(field.annotation) or (field.annotation,)
    return next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _paths(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name in section.model_fields:
        yield prefix + name
        child = _section_of(section, name)
        if child is not None:
            yield from _paths(child, f"{prefix}{name}.")
