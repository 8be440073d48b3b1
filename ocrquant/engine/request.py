"""One request on its way through the engine, and what its caller gets back.

Knows tokens, counts and states; the scheduler moves it on. Holds no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocrquant.engine.pools import Holding
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.sampling import SamplingParams
from ocrquant.engine.text import TextStream

__all__ = [
    "DraftCounts",
    "FinishReason",
    "PrefixKey",
    "Request",
    "RequestOutput",
    "RequestResult",
    "RequestState",
]


class RequestState(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class FinishReason(StrEnum):
    """Why an answer ended."""

    END = "end"
    """The model's end token."""
    STOP = "stop"
    """One of the request's stop strings."""
    LENGTH = "length"
    """The request's own limit of tokens."""
    POSITIONS = "positions"
    """The longest sequence that the model or the engine has room for."""
    LOOP = "loop"
    """One phrase over and over."""
    CANCELLED = "cancelled"
    """The caller's wish."""


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """A beginning of a prompt that is worth keeping, by a name that equal beginnings share."""

    num_tokens: int
    digest: bytes


@dataclass(slots=True)
class DraftCounts:
    """What came of the guesses for one request.

    Attributes:
        num_windows: Steps that verified some.
        num_guessed: Guesses.
        num_accepted: Those that the target chose as well.
        num_alone: At least so many of what the slots of a drafter guessed without its selector; what comes
            after the first wrong guess of a window is not known.
        tried: At place j the windows with more than j guesses whose first j were all accepted.
        survived: At place j the windows whose first j + 1 guesses were all accepted.
    """

    num_windows: int = 0
    num_guessed: int = 0
    num_accepted: int = 0
    num_alone: int = 0
    tried: list[int] = field(default_factory=list)
    survived: list[int] = field(default_factory=list)

    def add(self, guessed: int, rows: int, alone: int) -> None:
        """Counts one window.

        Args:
            guessed: Its guesses.
            rows: Rows that count: the last known token, then right guesses.
            alone: Right guesses of the slots alone, as far as is known.
        """
        accepted = min(rows - 1, guessed)
        self.num_windows += 1
        self.num_guessed += guessed
        self.num_accepted += accepted
        self.num_alone += alone
        tried = min(accepted + 1, guessed)
        self.tried += [0] * (tried - len(self.tried))
        self.survived += [0] * (accepted - len(self.survived))
        for place in range(accepted):
            self.tried[place] += 1
            self.survived[place] += 1
        if tried > accepted:
            self.tried[accepted] += 1

    def merge(self, other: DraftCounts) -> None:
        """Counts the windows of others too."""
        self.num_windows += other.num_windows
        self.num_guessed += other.num_guessed
        self.num_accepted += other.num_accepted
        self.num_alone += other.num_alone
        self.tried = [a + b for a, b in zip_longest(self.tried, other.tried, fillvalue=0)]
        self.survived = [a + b for a, b in zip_longest(self.survived, other.survived, fillvalue=0)]

    @property
    def survival(self) -> list[float]:
        """Chances that the first 1, 2, ... guesses of a window are all accepted.

        Each place counts the windows that had a guess there, so that short ones change nothing further on.
        """
        found, chance = [], 1.0
        for accepted, tried in zip_longest(self.survived, self.tried, fillvalue=0):
            chance *= accepted / tried
            found.append(chance)
        return found

    @property
    def tokens_a_step(self) -> float:
        """Tokens of a window on average: accepted guesses and the target's own one; NaN without windows."""
        return 1 + self.num_accepted / self.num_windows if self.num_windows else float("nan")

    @property
    def tokens_alone(self) -> float:
        """The same without a selector, at least."""
        return 1 + self.num_alone / self.num_windows if self.num_windows else float("nan")


@dataclass(slots=True, eq=False)
class Request:
    """A request; the same object from submission to its last output.

    Attributes:
        id: The caller's name for it.
        number: Counts submissions: a smaller number is an older request.
        prompt: What is asked.
        sampling: How tokens are chosen.
        limit: Most tokens of the answer once the longest sequence is taken into account.
        prefix_keys: Beginnings of its prompt that are worth keeping, the longest first.
        stream: Its text.
        state: Where it is.
        output_ids: The answer so far, an end token left out.
        gaps: For each token of `output_ids` how far the largest logit was above the second.
        num_generated: Tokens generated, an end token counted.
        num_tokens: Tokens known: the prompt and the answer so far.
        num_computed: First tokens of prompt and answer whose keys, values and state are in the pools.
        holding: Its slot and pages while it runs.
        num_cached: Tokens that the prefix cache gave when it last entered.
        num_preemptions: How often it lost its pages.
        images_encoded: Whether the runner keeps its encoded images.
        drafts: What came of guesses of its tokens.
        finish_reason: Why it ended; None before.
    """

    id: str
    number: int
    prompt: Prompt
    sampling: SamplingParams
    limit: int
    prefix_keys: tuple[PrefixKey, ...] = ()
    stream: TextStream = field(default_factory=TextStream)
    state: RequestState = RequestState.WAITING
    output_ids: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    num_generated: int = 0
    num_tokens: int = field(init=False)
    num_computed: int = 0
    holding: Holding | None = None
    num_cached: int = 0
    num_preemptions: int = 0
    images_encoded: bool = False
    drafts: DraftCounts = field(default_factory=DraftCounts)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.num_tokens = len(self.prompt) + len(self.output_ids)

    def extend(self, tokens: Sequence[int], gaps: Sequence[float]) -> None:
        """Adds tokens to the answer."""
        self.output_ids += tokens
        self.gaps += gaps
        self.num_tokens += len(tokens)

    @property
    def slot(self) -> int:
        """Its state slot while it runs."""
        assert self.holding is not None, "only a running request has a slot"
        return self.holding.slot

    def tokens(self, start: int, end: int) -> npt.NDArray[np.int32]:
        """int32 [end - start], known tokens by their place in the sequence."""
        length = len(self.prompt.tokens)
        if end <= length:
            return self.prompt.tokens[start:end]
        answer = np.array(self.output_ids[max(start - length, 0) : end - length], np.int32)
        return np.concatenate([self.prompt.tokens[start:], answer]) if start < length else answer


@dataclass(frozen=True, slots=True)
class RequestResult:
    """A request that is over.

    Attributes:
        finish_reason: Why it ended.
        text: The whole answer.
        ids: All its tokens, an end token left out. With a stop string they may reach beyond the text.
        gaps: For each token of `ids` how far the largest logit was above the second.
        num_generated: Tokens generated, an end token counted.
        num_prompt_tokens: Length of the prompt.
        num_cached: Tokens that the prefix cache gave when the request last entered.
        num_preemptions: How often it had to give its pages back.
        drafts: What came of guesses of its tokens.
    """

    finish_reason: FinishReason
    text: str
    ids: tuple[int, ...]
    gaps: tuple[float, ...]
    num_generated: int
    num_prompt_tokens: int
    num_cached: int
    num_preemptions: int
    drafts: DraftCounts


class RequestOutput(NamedTuple):
    """What one step gave one request; a tuple, being made for every request in every step.

    Attributes:
        id: The request.
        new_ids: Tokens of this step, an end token left out.
        new_text: Text that is certain by now: no half character, no beginning of a stop string.
        result: The whole answer once it is over; None while it goes on.
    """

    id: str
    new_ids: tuple[int, ...]
    new_text: str
    result: RequestResult | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more comes."""
        return self.result is not None
