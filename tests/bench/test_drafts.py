"""Drafts of the shipped drafters against no drafts."""

from dataclasses import dataclass

import pytest

from ocrquant.bench.drafts import _compare
from ocrquant.engine.request import DraftCounts
from tests.bench.running import result_of


@pytest.mark.parametrize("drafter", ["pico-dflash", "pico-dflash2"])
def test_texts_are_those_without_drafts(capsys, drafter):
    data = result_of(
        capsys, "drafts", f"drafters=[{drafter}]", "crops=6", "at_once=3", "max_tokens=60", repeats=None
    )
    found = data["results"][drafter]
    assert found["equal_texts"] + len(found["differences"]) == 6
    assert all(parted["within_noise"] for parted in found["differences"])
    # Far below what it reaches, far above what a drafter that learnt nothing does.
    assert found["tokens_a_step"]["all"] > 2.5
    assert found["windows"]["line"] > 0
    beyond = next(goal for goal in data["goals"] if "beyond the noise" in goal["what"])
    assert beyond["verdict"] == "reached"


@dataclass
class _Page:
    id: str
    kind: str


@dataclass
class _Result:
    ids: tuple[int, ...]
    gaps: tuple[float, ...]
    num_generated: int
    drafts: DraftCounts


def test_where_texts_part_by_hand():
    pages = [_Page("a", "line"), _Page("b", "line"), _Page("c", "block")]
    none = DraftCounts()
    alone = [
        _Result((1, 2, 3), (5.0, 4.0, 0.1), 4, none),
        _Result((7, 8), (2.0, 2.0), 3, none),
        _Result((5,), (1.0,), 2, none),
    ]
    drafted = [
        _Result((1, 2, 4), (5.25, 4.0, 0.2), 4, DraftCounts(2, 6, 1)),
        # It goes on where the other one ended.
        _Result((7, 8, 9), (2.0, 2.0, 3.0), 4, DraftCounts(1, 3, 3)),
        _Result((5,), (1.0,), 2, DraftCounts(1, 3, 0)),
    ]
    found = _compare(pages, alone, drafted)
    assert found["tokens_a_step"] == {"block": 1.0, "line": 2.0, "all": 7 / 4}
    assert found["equal_texts"] == 1
    assert found["noise"]["largest_gap_change"] == 0.25
    assert found["differences"] == [
        {"page": "a", "position": 2, "top_two_gaps": [0.1, 0.2], "within_noise": True},
        {"page": "b", "position": 2, "top_two_gaps": [3.0], "within_noise": False},
    ]
