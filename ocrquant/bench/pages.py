"""The pages that benchmarks read: held-out crops of the calibration data, kinds in their proportion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ocrquant.adapters.headers import model_folder
from ocrquant.errors import PagesError
from ocrquant.pages import load_pages, page_image
from ocrquant.pages.page import ImageRef

__all__ = ["CROPS", "BenchPage", "checkpoint_folder", "deal", "heldout_pages"]

CROPS = Path(__file__).parents[2] / "calibration_data"
"""Where a checkout has them."""


@dataclass(frozen=True, slots=True, eq=False)
class BenchPage:
    """A page in memory.

    Attributes:
        id: Its name.
        kind: ``line``, ``block`` or ``page``.
        image: Decoded, RGB.
        file: Where it lies.
    """

    id: str
    kind: str
    image: Image.Image
    file: ImageRef


def checkpoint_folder(name: str) -> Path:
    """Folder of a checkpoint, or of a shipped model by its name."""
    return model_folder(name)


def heldout_pages(count: int, source: Path | str = CROPS) -> list[BenchPage]:
    """So many held-out pages in the order of their names, kinds spread evenly and in their own proportion.

    Raises:
        PagesError: There are not so many.
    """
    pages = [page for page in load_pages(source) if page.split == "heldout"]
    if len(pages) < count:
        fix = "ask for fewer, or name another source"
        raise PagesError(source, expected=f"{count} held-out pages", given=len(pages), fix=fix)
    kinds = {kind: [page for page in pages if page.kind == kind] for kind in sorted({p.kind for p in pages})}
    # Each page has a place in [0, 1) among those of its kind; sorted by it, any run has the kinds' shares.
    placed = [
        ((number + 0.5) / len(members), page.id, page)
        for members in kinds.values()
        for number, page in enumerate(sorted(members, key=lambda page: page.id))
    ]
    order = [page for _, _, page in sorted(placed, key=lambda item: item[:2])]
    step = len(order) / count
    chosen = [order[int(number * step)] for number in range(count)]
    return [BenchPage(page.id, page.kind, page_image(page).convert("RGB"), page.image) for page in chosen]


def deal(pages: Sequence[BenchPage], size: int, repeats: int) -> list[list[BenchPage]]:
    """Pages of each repeat: at least so many repeats, every page equally often.

    Args:
        pages: All pages; their number is a multiple of `size`.
        size: Pages in a repeat.
        repeats: Least number of repeats.

    Raises:
        PagesError: They cannot be dealt evenly.
    """
    if len(pages) % size:
        fix = "ask for another number of crops"
        raise PagesError("crops", expected=f"a multiple of {size}", given=len(pages), fix=fix)
    slices = [list(pages[first : first + size]) for first in range(0, len(pages), size)]
    rounds = -(-repeats // len(slices))
    return slices * rounds
