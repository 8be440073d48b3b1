"""An estimate with its interval. Does not know what was estimated."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from ocrquant.artifacts.base import FrozenModel

__all__ = ["Interval"]


class Interval(FrozenModel):
    """An estimate with its 95 % interval from a bootstrap that resamples documents.

    Attributes:
        estimate: What was measured.
        low: Lower end; None where a single document tells nothing about others.
        high: Upper end; None together with `low`.
    """

    estimate: float
    low: float | None
    high: float | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high must be known together")
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError("low must not exceed high")
        return self

    @property
    def includes_zero(self) -> bool:
        """Whether the data cannot tell the estimate from none at all."""
        return self.low is None or self.high is None or self.low <= 0 <= self.high

    def reaches(self, limit: float, *, is_minimum: bool = False) -> bool:
        """Whether values on both sides of a limit are among the plausible ones.

        Args:
            limit: It passes itself.
            is_minimum: Whether larger values pass, and not smaller ones.
        """
        if self.low is None or self.high is None:
            return True
        return self.low < limit <= self.high if is_minimum else self.low <= limit < self.high
