"""A progress bar for work that is counted in pages or groups: rate, time left, silent where nobody watches.

Knows how to draw and count. Knows nothing of the work; imports rich only when a bar is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Advance", "progress_bar"]


class Advance(Protocol):
    """Moves a bar on."""

    def __call__(self, count: int, note: str = "") -> None:
        """Takes the number of units just finished, and what else to show beside the rate from now on."""


@contextmanager
def progress_bar(title: str, total: int, unit: str, *, done: int = 0) -> Iterator[Advance]:
    """Draws a bar on standard error and yields the function that moves it on.

    Args:
        title: What is being done.
        total: Units in all.
        unit: What is counted, in the plural, such as ``pages``.
        done: Units that an earlier process finished; they do not count towards the rate.

    Yields:
        A function that takes the number of units just finished. It does nothing where standard error is not a
        terminal.
    """
    if not sys.stderr.isatty():
        yield lambda count, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}  {{task.fields[rate]}}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total, completed=done, rate="")

        def advance(count: int, note: str = "") -> None:
            progress.advance(task, count)
            state = progress.tasks[0]
            elapsed = state.elapsed or 0.0
            rate = (state.completed - done) / elapsed if elapsed > 0 else 0.0
            progress.update(task, rate=f"{rate:.2f} {unit}/s" + (f"  {note}" if note else ""))

        yield advance
