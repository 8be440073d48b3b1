"""What all sections of a recipe are made of: closed models, patterns, and errors of rules between keys."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

__all__ = ["Pattern", "Section", "check_distinct", "rule_broken"]


def rule_broken(expected: str, given: object, fix: str) -> PydanticCustomError:
    """An error of a rule between keys, in the parts that `RecipeError` is made of."""
    context = {"expected": expected, "given": str(given), "fix": fix}
    return PydanticCustomError("rule", "expected {expected}, got {given}; {fix}", context)


def check_distinct(values: list[Any]) -> list[Any]:
    """Refuses a list that names something twice."""
    if len(set(values)) != len(values):
        raise rule_broken("distinct entries", ", ".join(str(v) for v in values), "remove the repeated one")
    return values


def _check_pattern(pattern: str) -> str:
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise rule_broken("a regular expression after re:", error, "mend the pattern") from error
    elif not pattern.strip():
        raise rule_broken("a pattern", "an empty text", "remove it") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_check_pattern)]


class Section(BaseModel):
    """Base of all sections: unknown keys, NaN and Inf are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
