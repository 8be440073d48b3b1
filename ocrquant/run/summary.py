"""What ``ocrquant run`` came to: ``summary.json``, one line for people, and the error if pages failed.

Knows counts and times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from ocrquant.errors import PagesError

if TYPE_CHECKING:
    from ocrquant.engine import PageResult

__all__ = ["RunSummary"]

CUT_SHORT = ("length", "positions", "loop")
"""Ends of answers that are none."""


@dataclass(slots=True, kw_only=True)
class RunSummary:
    """Counts of one run; what earlier runs did counts as skipped only.

    Attributes:
        checkpoint: Its folder.
        num_pages: All pages that were named.
        num_skipped: Up to date already.
        failed: Page -> why it could not be read.
        finish_reasons: Why answers ended, by number.
        cut_short: Pages whose answers ended at a limit or in a loop.
        num_tokens: Tokens generated.
        seconds: From the first page to the last text.
        first_token_seconds: Of each page, from the engine's accepting it.
        prepare_seconds: Of each page, opening and encoding.
        settings: What was asked for.
        runtime: What it ran on.
        guesses: What guessing brought, see `ocrquant.engine.statistics`; empty without.
    """

    checkpoint: str
    num_pages: int
    num_skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    finish_reasons: dict[str, int] = field(default_factory=dict)
    cut_short: list[str] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0
    first_token_seconds: list[float] = field(default_factory=list)
    prepare_seconds: list[float] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    guesses: Mapping[str, Any] = field(default_factory=dict)

    def add(self, result: PageResult) -> None:
        """Counts a page that is over."""
        if result.error is not None:
            self.failed[result.page.id] = str(result.error)
            return
        assert result.finish_reason is not None, "a page that did not fail has an answer"
        self.num_tokens += result.num_tokens
        reason = result.finish_reason.value
        self.finish_reasons[reason] = self.finish_reasons.get(reason, 0) + 1
        self.first_token_seconds.append(result.first_token_seconds)
        self.prepare_seconds.append(result.prepare_seconds)
        if result.finish_reason in CUT_SHORT:
            self.cut_short.append(result.page.id)

    @property
    def num_read(self) -> int:
        """Pages whose texts were written."""
        return self.num_pages - self.num_skipped - len(self.failed)

    @property
    def tokens_per_second(self) -> float:
        """Of all pages together."""
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0

    def line(self) -> str:
        """One line for people."""
        counts = [f"{self.num_read} read"]
        counts += [f"{self.num_skipped} skipped"] if self.num_skipped else []
        counts += [f"{len(self.failed)} failed"] if self.failed else []
        counts += [f"{len(self.cut_short)} cut short"] if self.cut_short else []
        parts = [f"{self.num_pages} pages: {', '.join(counts)}"]
        if self.num_tokens:
            parts.append(
                f"{self.num_tokens:,} tokens in {self.seconds:.1f} s ({self.tokens_per_second:,.0f} tokens/s)"
            )
            parts.append(f"first token after {median(self.first_token_seconds):.3f} s (median)")
        return "; ".join(parts)

    def to_json(self) -> str:
        """Content of ``summary.json``."""
        data = asdict(self)
        times = {name: data.pop(name) for name in ("first_token_seconds", "prepare_seconds")}
        data |= {f"{name}_median": median(values) if values else None for name, values in times.items()}
        data |= {"num_read": self.num_read, "tokens_per_second": self.tokens_per_second}
        data["cut_short"] = sorted(self.cut_short)
        data["failed"] = dict(sorted(self.failed.items()))
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    def raise_if_failed(self) -> None:
        """Says in one line that pages failed.

        Raises:
            PagesError: They did.
        """
        if self.failed:
            name, error = min(self.failed.items())
            raise PagesError(
                f"{len(self.failed)} of {self.num_pages} pages",
                expected="pages that can be read",
                given=f"among others {name} ({error})" if len(self.failed) > 1 else f"{name} ({error})",
                fix="see summary.json; the others are written, and the same command tries these again",
            )
