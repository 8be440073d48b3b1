"""Held-out crops: how many, which kinds, and dealt so that every one is used equally often."""

from collections import Counter

import pytest

from ocrquant.bench.pages import deal, heldout_pages
from ocrquant.errors import PagesError


def test_kinds_keep_their_proportion_in_all_and_in_every_part():
    pages = heldout_pages(64)
    assert len({page.id for page in pages}) == 64
    assert Counter(page.kind for page in pages)["block"] in (14, 15, 16)  # 48 of 208 in the source
    for first in range(0, 64, 8):
        assert 1 <= Counter(page.kind for page in pages[first : first + 8])["block"] <= 3
    assert pages[0].image.mode == "RGB"


def test_too_many_are_refused():
    with pytest.raises(PagesError, match="5000 held-out pages"):
        heldout_pages(5000)


@pytest.mark.parametrize(("size", "repeats", "expected"), [(4, 12, 16), (8, 12, 16), (8, 8, 8), (32, 12, 12)])
def test_every_page_is_dealt_equally_often(size, repeats, expected):
    slices = deal(list(range(64)), size, repeats)
    assert len(slices) == expected >= repeats
    assert all(len(part) == size for part in slices)
    assert set(Counter(page for part in slices for page in part).values()) == {expected * size // 64}


def test_what_cannot_be_dealt_evenly_is_refused():
    with pytest.raises(PagesError, match="multiple of 8"):
        deal(list(range(12)), 8, 12)
