import dataclasses

import pytest

from ocrquant.calibrate.batching import encode_batch, split_held_back
from ocrquant.errors import PagesError, SplitError


def test_held_back_pages_are_others(pages):
    fit, held_back = split_held_back(pages, 4)
    assert len(held_back) == 4
    assert sorted(page.id for page in (*fit, *held_back)) == sorted(page.id for page in pages)


def test_choice_depends_on_names_alone(pages):
    _, held_back = split_held_back(pages, 4)
    _, other = split_held_back(pages[::-1], 4)
    assert {page.id for page in held_back} == {page.id for page in other}
    fewer = [page for page in pages if page not in held_back[:1]]
    assert {p.id for p in held_back[1:]} < {p.id for p in split_held_back(fewer, 4)[1]}


@pytest.mark.parametrize("count", [12, 13])
def test_nothing_left_to_fit_on_is_refused(pages, count):
    expected = rf"expected more than weights\.num_held_back_pages \({count}\), got 12"
    with pytest.raises(SplitError, match=expected):
        split_held_back(pages, count)


def test_page_without_text_is_refused(document, pages):
    silent = dataclasses.replace(pages[0], text=None, truth_source="model")
    with pytest.raises(PagesError, match=r"page 0\.png: expected a text, got none"):
        encode_batch(document, [silent])
