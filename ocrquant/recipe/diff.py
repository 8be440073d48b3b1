"""In what two recipes differ, once imports, overrides and defaults are filled in.

Knows resolved recipes. Does not know what any key is for, nor which difference makes a stage run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ocrquant.recipe.schema import Recipe

__all__ = ["Difference", "recipe_differences"]

_ABSENT = "(not set)"


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that two recipes do not share.

    Attributes:
        key: Dotted key, as ``--set`` takes it.
        old: Value of the first recipe; None where it sets none.
        new: Value of the second recipe; None where it sets none.
    """

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"


def recipe_differences(old: Recipe, new: Recipe) -> list[Difference]:
    """The values that differ, in the order of the schema.

    Lists are compared as wholes; a mapping that a person fills, such as `search.force`, key by key.

    Args:
        old: The first recipe.
        new: The second recipe.
    """
    left, right = dict(_values(_data(old))), dict(_values(_data(new)))
    keys = [key for key in left if left[key] != right.get(key)]
    keys += [key for key in right if key not in left]
    place = {section: index for index, section in enumerate(Recipe.model_fields)}
    keys.sort(key=lambda key: place[key.partition(".")[0]])
    return [Difference(key, left.get(key), right.get(key)) for key in keys]


def _data(recipe: Recipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude_none=True)


def _values(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: Any) -> str:
    return _ABSENT if value is None else json.dumps(value, ensure_ascii=False)
