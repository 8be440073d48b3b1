"""A section of ``config.json`` read key by key, each with the type that the model needs.

Knows JSON; does not know which keys there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocrquant.errors import ModelError

__all__ = ["Section"]

_NONE: Any = object()


class Section:
    """A mapping whose missing and odd keys are refused by name.

    Args:
        data: The mapping.
        path: Where it stands, such as ``text_config``; empty for the file itself.
    """

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data = data
        self._path = path

    def section(self, key: str) -> Section:
        """A mapping below this one."""
        return Section(self._get(key, Mapping, _NONE), self._name(key))

    def integer(self, key: str, default: int = _NONE) -> int:
        """A whole number > 0."""
        value: int = self._get(key, int, default)
        if isinstance(value, bool) or value <= 0:
            raise self._refuse(key, "a whole number > 0", value)
        return value

    def token(self, key: str) -> int:
        """The id of a token."""
        value: int = self._get(key, int, _NONE)
        if isinstance(value, bool) or value < 0:
            raise self._refuse(key, "the id of a token", value)
        return value

    def number(self, key: str, default: float = _NONE) -> float:
        """A number > 0."""
        value = self._get(key, int | float, default)
        if isinstance(value, bool) or value <= 0:
            raise self._refuse(key, "a number > 0", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; ``null`` counts as absent."""
        value: bool = self._get(key, bool, default)
        return value

    def integers(self, key: str, default: list[int]) -> list[int]:
        """A list of whole numbers."""
        value: list[int] = self._get(key, list, default)
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            raise self._refuse(key, "whole numbers", value)
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str = _NONE) -> str:
        """One of a few words; every other one asks for what this model does not compute."""
        value: str = self._get(key, str, default)
        if value not in allowed:
            raise self._refuse(key, " or ".join(allowed), value)
        return value

    def words(self, key: str, allowed: tuple[str, ...]) -> list[str]:
        """A list of a few words."""
        value: list[str] = self._get(key, list, _NONE)
        for word in value:
            if word not in allowed:
                raise self._refuse(key, " or ".join(allowed), word)
        return value

    def require(self, key: str, expected: object, default: object) -> None:
        """Refuses any other value of a key than the one that this model computes."""
        given = self.data.get(key, default)
        if given != expected:
            raise self._refuse(key, expected, given)

    def expect(self, condition: bool, key: str, expected: object, given: object) -> None:
        """Refuses a value that does not suit another one."""
        if not condition:
            raise self._refuse(key, expected, given)

    def _get(self, key: str, kind: Any, default: Any) -> Any:
        value = self.data.get(key)
        if value is None:
            if default is _NONE:
                raise self._refuse(key, "a value", "none")
            return default
        if not isinstance(value, kind):
            raise self._refuse(key, getattr(kind, "__name__", kind), value)
        return value

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _refuse(self, key: str, expected: object, given: object) -> ModelError:
        fix = "take another model, or mend the file"
        return ModelError(f"{self._name(key)} in config.json", expected=expected, given=given, fix=fix)
