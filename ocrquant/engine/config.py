"""The engine's settings, checked once.

Knows counts and bounds, and how they must suit one another; knows no model, device or file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from ocrquant.errors import EngineError

__all__ = ["EngineConfig", "Policy"]

Policy = Literal["fcfs", "shortest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine has room for.

    Attributes:
        max_positions: Longest sequence in tokens, prompt and answer together.
        position_axes: Axes of a token's position; 3 for time, height and width.
        num_pages: Pages of the target's keys and values.
        page_size: Tokens in a page, of the target and of the drafter.
        max_requests: Most requests that run at once.
        max_step_tokens: Most rows of a step: decoded rows and parts of prompts together.
        num_slots: State slots; None for one per running request. Slot 0 comes on top and belongs to nobody.
        drafter_pages: Pages of a drafter's keys and values; 0 without a drafter.
        max_window: Most rows of one request whose tokens are drafted, the last known token included.
        policy: Which waiting request enters first: ``fcfs``, or ``shortest`` for the shortest prompt.
        queue_limit: Most waiting requests; more are refused.
        prefix_cache_bytes: Most memory of kept prefixes; 0 keeps none.
        keep_prompts: Keep whole prompts too, not only the text before an image. Costs every new prompt one
            more row of one more step where states are recurrent.
        recurrent: Whether the model has layers with a recurrent state.

    Raises:
        EngineError: A setting is out of range or does not suit another; names it.
    """

    max_positions: int
    num_pages: int
    position_axes: int = 3
    page_size: int = 16
    max_requests: int = 8
    max_step_tokens: int = 512
    num_slots: int | None = None
    drafter_pages: int = 0
    max_window: int = 1
    policy: Policy = "fcfs"
    queue_limit: int = 1024
    prefix_cache_bytes: int = 0
    keep_prompts: bool = True
    recurrent: bool = True

    def __post_init__(self) -> None:
        may_be_zero = {"drafter_pages", "prefix_cache_bytes"}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type != "int":
                continue
            least = 0 if field.name in may_be_zero else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise _refused(field.name, f"a whole number of at least {least}", value)
        for name in ("keep_prompts", "recurrent"):
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, "true or false", getattr(self, name))
        if self.policy not in get_args(Policy):
            raise _refused("policy", " or ".join(get_args(Policy)), repr(self.policy))
        if self.num_slots is not None and self.num_slots < 1:
            raise _refused("num_slots", "at least 1 slot", self.num_slots)
        least_rows = self.max_requests * self.max_window
        if self.max_step_tokens < least_rows:
            expected = f"at least max_requests * max_window = {least_rows} rows, so that all can go on"
            raise _refused("max_step_tokens", expected, self.max_step_tokens)

    @property
    def usable_slots(self) -> int:
        """State slots that requests can have, the null slot not counted."""
        return self.max_requests if self.num_slots is None else self.num_slots

    @property
    def state_rows(self) -> int:
        """Length of the slot axis of state tensors: the usable slots and slot 0, which belongs to nobody."""
        return self.usable_slots + 1

    @property
    def pages_per_request(self) -> int:
        """Pages of the longest sequence: the width of a page table."""
        return self.pages_for(self.max_positions)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)


def _refused(field: str, expected: str, given: object) -> EngineError:
    return EngineError(f"engine.{field}", expected=expected, given=given, fix="correct the setting")
