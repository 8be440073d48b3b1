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

__all__ = [
    "Assignment",
    "BudgetKind",
    "CachePrecision",
    "MeasuredKl",
    "Pareto",
    "ParetoPoint",
    "RepairRecord",
    "StepRecord",
    "Swap",
]

BudgetKind = Literal["bits_per_weight", "weight_bytes", "max_kl", "step_us"]
CachePrecision = Literal["bf16", "fp8"]

_PLAIN = frozenset(string.ascii_letters + string.digits + "._+/-")

_COMMENT = """\
# The precision of each group of linears. Edit a line under `groups` and run the command again: the checkpoint
# and the report follow. The sums above the groups describe the plan as it was found.
"""


class StepRecord(FrozenModel):
    """What a decode step takes on a machine, as far as the plan decides it.

    Attributes:
        us: Microseconds of all linears of the groups and of reading keys and values.
        kv_us: The latter; 0 where their size is not known or no context was stated.
        bf16_us: The same sum with everything in bf16.
        load: Requests, rows and context, and whether times were measured, on what and when, or computed.
        notes: Formats that the machine does not compute in, or that are slower there than a wider one.
    """

    us: float = Field(ge=0)
    kv_us: float = Field(ge=0)
    bf16_us: float = Field(ge=0)
    load: str
    notes: list[str] = Field(default_factory=list)


class MeasuredKl(FrozenModel):
    """KL divergence of a whole plan.

    Attributes:
        predicted: Sum of scores, in nats a token.
        measured: Measured on the scored pages, in nats a token.
        standard_error: Standard error of the measured one over pages.
    """

    predicted: float
    measured: float
    standard_error: float = Field(ge=0)


class Swap(FrozenModel):
    """Groups that took other formats together.

    Attributes:
        groups: Group -> its old and its new format.
        predicted: Change of the sum of scores, in nats a token.
        measured: Change of the measured KL.
        standard_error: Standard error of that change, paired over pages.
        is_kept: Whether the plan changed.
    """

    groups: dict[str, tuple[Precision, Precision]] = Field(min_length=1)
    predicted: float
    measured: float
    standard_error: float = Field(ge=0)
    is_kept: bool


class RepairRecord(FrozenModel):
    """What measuring whole plans changed.

    The plan was chosen among those that were measured, on these pages: its own KL on other pages is higher
    by more than chance, and the evaluation says by how much.

    Attributes:
        num_measurements: Plans that were measured.
        num_pages: Pages they were measured on.
        num_tokens: Answer tokens.
        before: The plan of least sum.
        after: The plan that was kept.
        swaps: All that were measured, in their order.
    """

    num_measurements: int = Field(ge=1)
    num_pages: int = Field(gt=0)
    num_tokens: int = Field(gt=0)
    before: MeasuredKl
    after: MeasuredKl
    swaps: list[Swap] = Field(default_factory=list)


class Assignment(Artifact):
    """The chosen plan.

    Attributes:
        budget: What was asked for, under its name in the recipe.
        score: Kind of score that was minimised.
        predicted_loss: Sum of the groups' scores: nats a token for ``kl``.
        bits_per_weight: Reached by the searched groups.
        weight_bytes: Bytes that the searched groups take on disk, scales included.
        kv_cache: Format of keys and values.
        kv_bytes: Bytes of keys and values that the budget counted beside the weights; None where it counted
            none.
        step: Time of a decode step, where a machine was named.
        repair: What measuring the plan as a whole changed, where that was asked for.
        groups: Precision by group.
    """

    FILE_NAME: ClassVar[str] = "assignment.yaml"
    STAGE: ClassVar[str] = "assign"

    budget: dict[BudgetKind, float] = Field(min_length=1, max_length=1)
    score: ScoreKind
    predicted_loss: float
    bits_per_weight: float = Field(gt=0)
    weight_bytes: int = Field(gt=0)
    kv_cache: CachePrecision = "bf16"
    kv_bytes: int | None = None
    step: StepRecord | None = None
    repair: RepairRecord | None = None
    groups: dict[str, Precision] = Field(min_length=1)

    def render(self) -> str:
        """The file's text: header, sums, then one line a group."""
        data = self.model_dump(mode="json", exclude={"groups"}, exclude_none=True)
        header = yaml.safe_dump(data, sort_keys=False, width=1 << 16)
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
    """A plan that no other one beats in both size and predicted loss, or another one for comparison.

    Attributes:
        name: ``fp8``, ``nvfp4`` or ``bf16`` for uniform plans, ``plan`` for the chosen one, that of
            `ocrquant.assign.hand_maps` for plans by hand, empty otherwise.
        bits_per_weight: Over the searched groups.
        weight_bytes: Bytes of the searched groups, scales included, and of keys and values that count.
        predicted_loss: Sum of the groups' scores.
        num_groups: How many groups have each precision.
    """

    name: str = ""
    bits_per_weight: float = Field(gt=0)
    weight_bytes: int = Field(gt=0)
    predicted_loss: float
    num_groups: dict[Precision, int]


class Pareto(Artifact):
    """The front from the smallest plan to bf16, smallest first; uniform plans and those by hand beside it."""

    FILE_NAME: ClassVar[str] = "pareto.json"
    STAGE: ClassVar[str] = "assign"

    score: ScoreKind
    front: list[ParetoPoint] = Field(min_length=1)
    uniform: list[ParetoPoint]
    hand: list[ParetoPoint] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for smaller, larger in zip(self.front, self.front[1:], strict=False):
            if larger.weight_bytes <= smaller.weight_bytes or larger.predicted_loss >= smaller.predicted_loss:
                raise ValueError("the front must grow in bytes and fall in loss")
        return self
