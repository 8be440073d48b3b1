"""How many drafted tokens a step keeps, and how often ReplaySSM then folds its records.

Knows probabilities by position. Does not know how they were measured, or what a step costs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from ocrquant.errors import ArtifactError, RecipeError

__all__ = ["Acceptance", "ReplayTraffic", "replay_traffic"]

_KEY = "accepted_by_position"
_FIX = f'write {{"{_KEY}": [p1, p2, ...]}}, the chance that the first 1, 2, ... drafts are accepted'
_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance of drafts by position.

    Attributes:
        survival: ``survival[j - 1]`` is the chance that the first j drafts are accepted; never rises.

    Raises:
        RecipeError: A chance is outside of 0 to 1 or above the one before.
    """

    survival: tuple[float, ...]

    def __post_init__(self) -> None:
        before = 1.0
        for number, chance in enumerate(self.survival, 1):
            if not 0.0 <= chance <= before:
                raise RecipeError(
                    f"acceptance of the first {number} drafts",
                    expected=f"0 to {before}, which fewer drafts have",
                    given=chance,
                    fix=_FIX,
                )
            before = chance

    @classmethod
    def of_length(cls, length: float, block: int) -> Self:
        """The same chance for each draft after an accepted one, so that a step emits `length` tokens.

        Solves ``length = (1 - a**block) / (1 - a)`` for a.

        Args:
            length: Tokens of a step on average, the target's own one included.
            block: T, rows of a window.

        Raises:
            RecipeError: A window of that size cannot emit so many.
        """
        if not 1.0 <= length <= block:
            fix = "correct the length or the block"
            raise RecipeError("acceptance", expected=f"1 to {block} tokens a step", given=length, fix=fix)
        low, high = 0.0, 1.0
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            if sum(middle**j for j in range(block)) < length:
                low = middle
            else:
                high = middle
        return cls(tuple(high**j for j in range(1, block)))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads a measured one: the ``summary.json`` of ``ocrquant run --speculation``, or JSON of one's own.

        That has a list ``accepted_by_position`` of chances, or with a key ``steps`` of how many steps
        accepted at least so many drafts.

        Raises:
            ArtifactError: The file is missing or holds something else.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if "guesses" in data:
                return cls(tuple(map(float, data["guesses"]["survival"])))
            steps = float(data.get("steps", 1))
            return cls(tuple(float(value) / steps for value in data[_KEY]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
            raise ArtifactError(path, expected="acceptance by position", given=error, fix=_FIX) from error

    @property
    def max_block(self) -> int:
        """Rows of the longest window that it speaks of."""
        return len(self.survival) + 1

    def tokens(self, block: int) -> float:
        """Tokens that a step of windows of `block` rows emits for each request, on average."""
        return 1.0 + sum(self.survival[: block - 1])

    def emitted(self, block: int) -> list[float]:
        """Chance of a step to emit 1, 2, ... `block` tokens of a request."""
        kept = [1.0, *self.survival[: block - 1], 0.0]
        return [kept[j] - kept[j + 1] for j in range(block)]


@dataclass(frozen=True, slots=True)
class ReplayTraffic:
    """What ReplaySSM does in the long run.

    Attributes:
        flush_rate: Share of steps in which a request folds its records into the state.
        live_records: Records that a step reads of a request, on average.
    """

    flush_rate: float
    live_records: float


def replay_traffic(emitted: Sequence[float], history: int) -> ReplayTraffic:
    """The stationary distribution of ReplaySSM's cursor.

    The rule: behind a step that folded the cursor is what was emitted; otherwise it grows by that. A step
    folds if another window of T rows would not leave room for one more, ``cursor + 2 T > history``.

    Args:
        emitted: Chance to emit 1, 2, ... T tokens.
        history: L, records of a slot at most, at least 2 T.
    """
    window = len(emitted)
    if history < 2 * window:
        expected = f"at least {2 * window}, twice the window"
        raise RecipeError("history", expected=expected, given=history, fix="take a longer one")
    folds = [cursor + 2 * window > history for cursor in range(history + 1)]
    moves = np.zeros((history + 1, history + 1))
    for cursor, is_fold in enumerate(folds):
        for tokens, chance in enumerate(emitted, 1):
            moves[cursor, min(tokens if is_fold else cursor + tokens, history)] += chance
    # Every way leads to a fold and goes on from there alike, so there is exactly one such distribution.
    equations = np.vstack([moves.T - np.eye(history + 1), np.ones(history + 1)])
    right = np.zeros(history + 2)
    right[-1] = 1.0
    share = np.linalg.lstsq(equations, right, rcond=None)[0]
    return ReplayTraffic(float(share @ np.array(folds)), float(share @ np.arange(history + 1)))
