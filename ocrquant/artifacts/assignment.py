"""``assignment.yaml``: the precision of each group. ``pareto.json``: what other budgets would give.

A person may edit the assignment: export and evaluation follow the edited file. Knows nothing of how it was
found.
"""

from __future__ import annotations

import json
import string
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FrozenModel
from ocrquant.artifacts.sensitivity import ScoreKind
from ocrquant.formats import Precision

__all__ = ["Assignment", "BudgetKind", "Pareto", "ParetoPoint"]

BudgetKind = Literal["bits_per_weight", "weight_bytes", "max_kl"]

_PLAIN = frozenset(string.ascii_letters + string.digits + "._+/-")

_COMMENT = """\
# The precision of each group of linears. Edit a line under `groups` and run the command again: the checkpoint
# and the report follow. The sums above the groups describe the plan as it was found.
"""


class Assignment(Artifact):
    """The chosen plan.

    Attributes:
        budget: What was asked for, under its name in the recipe.
        score: Kind of score that was minimised.
        predicted_loss: Sum of the groups' scores: nats a token for ``kl``.
        bits_per_weight: Reached by the searched groups.
        weight_bytes: Bytes that the searched groups take on disk, scales included.
        groups: Precision by group.
    """

    FILE_NAME: ClassVar[str] = "assignment.yaml"
    STAGE: ClassVar[str] = "assign"

    budget: dict[BudgetKind, float] = Field(min_length=1, max_length=1)
    score: ScoreKind
    predicted_loss: float
    bits_per_weight: float = Field(gt=0)
    weight_bytes: int = Field(gt=0)
    groups: dict[str, Precision] = Field(min_length=1)

    def render(self) -> str:
        """The file's text: header, sums, then one line a group."""
        header = yaml.safe_dump(self.model_dump(mode="json", exclude={"groups"}), sort_keys=False)
        lines = [f"  {_yaml_key(name)}: {precision}\n" for name, precision in self.groups.items()]
        return _COMMENT + header + "groups:\n" + "".join(lines)

    @classmethod
    def parse(cls, text: str) -> Any:
        """Reads the file's text into plain data.

        Raises:
            ValueError: The text is no YAML, or a key is given twice.
        """
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            if repeated := _repeated_key(node):
                raise ValueError(f"the key {repeated!r} twice")
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error


def _yaml_key(name: str) -> str:
    # The library would spread a key of more than 128 characters over two lines.
    is_plain = not set(name) - _PLAIN and yaml.safe_load(name) == name
    return name if is_plain else json.dumps(name, ensure_ascii=False)


def _repeated_key(node: Any) -> str | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    seen = set()
    for key, value in node.value:
        if key.value in seen:
            return str(key.value)
        seen.add(key.value)
        if (repeated := _repeated_key(value)) is not None:
            return repeated
    return None


class ParetoPoint(FrozenModel):
    """A plan that no other one beats in both size and predicted loss, or a uniform plan for comparison.

    Attributes:
        name: ``fp8``, ``nvfp4`` or ``bf16`` for uniform plans, ``plan`` for the chosen one, empty otherwise.
        bits_per_weight: Over the searched groups.
        weight_bytes: Bytes of the searched groups, scales included.
        predicted_loss: Sum of the groups' scores.
        num_groups: How many groups have each precision.
    """

    name: str = ""
    bits_per_weight: float = Field(gt=0)
    weight_bytes: int = Field(gt=0)
    predicted_loss: float
    num_groups: dict[Precision, int]


class Pareto(Artifact):
    """The front from the smallest plan to bf16, smallest first, and the uniform plans beside it."""

    FILE_NAME: ClassVar[str] = "pareto.json"
    STAGE: ClassVar[str] = "assign"

    score: ScoreKind
    front: list[ParetoPoint] = Field(min_length=1)
    uniform: list[ParetoPoint]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for smaller, larger in zip(self.front, self.front[1:], strict=False):
            if larger.weight_bytes <= smaller.weight_bytes or larger.predicted_loss >= smaller.predicted_loss:
                raise ValueError("the front must grow in bytes and fall in loss")
        return self
