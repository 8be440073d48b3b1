"""YAML files, and the ``$import`` of one into another.

Knows files and merging. Does not know which keys a recipe may have.

``$import`` has two places. In a mapping, ``$import: units/a`` or ``$import: [units/a, units/b]`` lays the
mappings of those files under the keys beside it: a later file overrides an earlier one, the keys beside it
override both, mappings merge key by key and everything else is replaced. In a list, an item ``$import:
units/c`` is replaced by the items of that file's list. A name is looked up beside the importing file, then in
the folders above it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ocrquant.errors import RecipeError

__all__ = ["merge", "parse_yaml", "read_resolved"]

_KEY = "$import"
_NUM_FOLDERS_UP = 4


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.1 in which a repeated key is an error and ``1e-3`` is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is not a text", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str, thing: object) -> Any:
    """Reads YAML text.

    Args:
        text: The text.
        thing: What to call it in an error.

    Raises:
        RecipeError: The text is no YAML, or a key is repeated or is not a text.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f"{thing}: line {error.problem_mark.line + 1}" if error.problem_mark else thing
        raise RecipeError(line, expected="YAML", given=error.problem, fix="mend the line") from error
    except yaml.YAMLError as error:
        raise RecipeError(thing, expected="YAML", given=error, fix="mend the text") from error


def read_resolved(path: Path) -> Any:
    """Reads a YAML file and puts in place whatever it imports.

    Raises:
        RecipeError: A file is missing or no YAML, imports itself, or does not fit where it is imported.
    """
    return _read(path, ())


def merge(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Lays one mapping over another: mappings merge key by key, everything else is replaced."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _read(path: Path, importing: tuple[Path, ...]) -> Any:
    path = path.resolve()
    if path in importing:
        chain = " -> ".join(file.name for file in (*importing, path))
        raise RecipeError(path, expected="imports without a circle", given=chain, fix=f"remove one {_KEY}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        given = error.strerror if isinstance(error, OSError) else "a file that is not UTF-8"
        raise RecipeError(path, expected="a recipe file", given=given, fix=_files_beside(path)) from error
    return _resolve(parse_yaml(text, path), path, (*importing, path))


def _files_beside(path: Path) -> str:
    names = sorted(file.name for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    return f"name one of {', '.join(names[:8])}" if names else "name a file that exists"


def _resolve(value: Any, path: Path, importing: tuple[Path, ...]) -> Any:
    if isinstance(value, dict):
        own = {key: _resolve(child, path, importing) for key, child in value.items() if key != _KEY}
        return _import_mappings(value[_KEY], own, path, importing) if _KEY in value else own
    if isinstance(value, list):
        items: list[Any] = []
        for item in value:
            if isinstance(item, dict) and set(item) == {_KEY}:
                items += _import_list(item[_KEY], path, importing)
            else:
                items.append(_resolve(item, path, importing))
        return items
    return value


def _import_mappings(
    names: Any, own: dict[str, Any], path: Path, importing: tuple[Path, ...]
) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:
        unit = _read(_find(name, path), importing)
        if not isinstance(unit, dict):
            raise _misfit(name, "a mapping", unit, path)
        merged = merge(merged, unit)
    return merge(merged, own)


def _import_list(name: Any, path: Path, importing: tuple[Path, ...]) -> list[Any]:
    unit = _read(_find(name, path), importing)
    if not isinstance(unit, list):
        raise _misfit(name, "a list", unit, path)
    return unit


def _misfit(name: str, expected: str, unit: Any, path: Path) -> RecipeError:
    given = f"a {type(unit).__name__}" if unit is not None else "nothing"
    return RecipeError(
        f"{path}: {_KEY} {name}", expected=expected, given=given, fix="import another file here"
    )


def _find(name: Any, path: Path) -> Path:
    if not isinstance(name, str) or not name:
        raise RecipeError(f"{path}: {_KEY}", expected="a file name or a list of them", given=repr(name))
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    folders = [path.parent, *path.parent.parents][: _NUM_FOLDERS_UP + 1]
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    raise RecipeError(
        f"{path}: {_KEY} {name}",
        expected=f"a file {file} beside the recipe or up to {_NUM_FOLDERS_UP} folders above it",
        given="none",
        fix="correct the name",
    )
