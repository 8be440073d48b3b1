"""How the tokens of one request are chosen and when it ends.

Knows numbers and their ranges; draws nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from ocrquant.errors import RequestError

__all__ = ["SamplingParams"]

MAX_TEMPERATURE = 1e6
"""Far beyond a draw from equal chances, and far within float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Settings of one request.

    Attributes:
        temperature: 0 takes the most likely token; at most a million.
        top_p: Probability mass of the tokens that are drawn from, in (0, 1]; nothing at temperature 0.
        seed: Of the random numbers, in [0, 2**64). The number for a token depends on the seed and on the
            token's place in the sequence alone, so that neither batch nor preemption changes an answer.
        max_tokens: Most tokens of the answer, the end token counted.
        stop: Strings that end an answer; neither they nor what follows are part of it.
        stop_at_loop: Also end an answer that repeats one phrase over and over.
        ignore_eos: Go on after an end token, for measurements.

    Raises:
        RequestError: A setting is out of range; names it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    stop_at_loop: bool = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not _is(self.temperature, float) or not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise _refused("temperature", f"a number from 0 to {MAX_TEMPERATURE:g}", self.temperature)
        if not _is(self.top_p, float) or not 0 < self.top_p <= 1:
            raise _refused("top_p", "a number in (0, 1]", self.top_p)
        if not _is(self.seed, int) or not 0 <= self.seed < 1 << 64:
            raise _refused("seed", "a whole number in [0, 2**64)", self.seed)
        if not _is(self.max_tokens, int) or self.max_tokens < 1:
            raise _refused("max_tokens", "a whole number of at least 1", self.max_tokens)
        is_several = isinstance(self.stop, tuple | list)
        if not is_several or not all(isinstance(s, str) and s for s in self.stop):
            raise _refused("stop", "a tuple of strings that are not empty", repr(self.stop))
        for name in ("stop_at_loop", "ignore_eos"):
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, "true or false", getattr(self, name))

    @property
    def seed_words(self) -> tuple[int, int]:
        """The seed as two signed 32-bit words, the low one first."""
        low, high = self.seed & 0xFFFFFFFF, self.seed >> 32
        return low - ((low >> 31) << 32), high - ((high >> 31) << 32)


def _is(value: object, kind: type) -> bool:
    """Whether a number is of a kind, whole numbers among the others; true and false are none."""
    return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)


def _refused(field: str, expected: str, given: object) -> RequestError:
    return RequestError(f"sampling.{field}", expected=expected, given=given, fix="correct the request")
