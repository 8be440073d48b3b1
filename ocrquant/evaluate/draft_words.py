"""What a drafter did on the plan, in words and a table.

Knows numbers. Does not know how they were measured, nor where they are shown.
"""

from __future__ import annotations

from ocrquant.artifacts import DraftMetrics, DraftReport, Interval
from ocrquant.evaluate.table import Table
from ocrquant.evaluate.words import KIND_NAMES, NOTHING, count, interval_range

__all__ = ["DRAFTS_TITLE", "draft_notes", "drafts_lead", "drafts_table", "survival_table"]

DRAFTS_TITLE = "Speculative decoding"
_DESIGNS = {"dflash": "DFlash", "dflash2": "DFlash2"}
_MOST_NAMED = 20
_PLACES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


def drafts_lead(found: DraftReport) -> str:
    """What was read with what, and what the numbers mean."""
    return (
        f"The plan read the same pages once more with the drafter {found.drafter} "
        f"({_DESIGNS[found.design]}, blocks of {found.block_size} tokens). Acceptance length: tokens of the "
        "answer that one verification emits, the guesses that it accepts and one of the plan's own; "
        f"documents resampled. {_sameness(found)}"
    )


def drafts_table(found: DraftReport) -> Table:
    """One row for all pages and for each kind."""
    header = ("Pages", "From", "Acceptance length (95 %)", "Verifications", "Tokens", "Same text")
    return Table(header, tuple(_row(name, metrics) for name, metrics in _parts(found)), 2)


def survival_table(found: DraftReport) -> Table:
    """How often the first 1, 2, 4, ... guesses are all accepted."""
    longest = max(len(metrics.survival) for _, metrics in _parts(found))
    places = [place for place in _PLACES if place < longest] + [longest] * (longest > 0)
    header = ("First guesses all accepted", *map(str, places))
    rows = tuple(
        (name, *(_share(metrics.survival, place) for place in places)) for name, metrics in _parts(found)
    )
    return Table(header, rows)


def _parts(found: DraftReport) -> list[tuple[str, DraftMetrics]]:
    """All pages where they are of several kinds, then each kind."""
    parts = [("All", found.overall)] if len(found.by_kind) != 1 else []
    return parts + [(KIND_NAMES[kind].capitalize(), metrics) for kind, metrics in found.by_kind.items()]


def _share(survival: list[float], place: int) -> str:
    return f"{survival[place - 1]:.0%}".replace("%", "\u202f%") if place <= len(survival) else NOTHING


def draft_notes(found: DraftReport | None) -> list[str]:
    """Whether a text with drafts is another one than without, which it should never be."""
    if found is None or not found.other_pages:
        return []
    return [
        f"With drafts the plan reads {count(len(found.other_pages), 'page')} of {found.overall.num_pages} "
        "differently than without. Guesses choose no token; steps of other sizes round differently."
    ]


def _sameness(found: DraftReport) -> str:
    if not found.other_pages:
        return "Every page has the text that the plan reads without drafts."
    named = ", ".join(found.other_pages[:_MOST_NAMED])
    more = len(found.other_pages) - _MOST_NAMED
    return f"Another text than without drafts: {named}{f' and {more} more' if more > 0 else ''}."


def _row(name: str, metrics: DraftMetrics) -> tuple[str, ...]:
    return (
        name,
        f"{count(metrics.num_pages, 'page')}, {count(metrics.num_documents, 'document')}",
        _length(metrics.length),
        f"{metrics.num_windows:,}",
        f"{metrics.num_tokens:,}",
        f"{metrics.num_same} of {metrics.num_pages}",
    )


def _length(found: Interval | None) -> str:
    if found is None:
        return NOTHING
    if found.low is None:
        return f"{found.estimate:.2f}"
    return f"{found.estimate:.2f} ({interval_range(found)})"
