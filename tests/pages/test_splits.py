import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrquant.errors import SplitError
from ocrquant.pages.entries import Entry
from ocrquant.pages.page import ImageRef
from ocrquant.pages.splits import assign_splits, select


def entry(number, document, *, kind="line", split=None, group=None):
    return Entry(
        id=f"p{number}",
        document=document,
        group=group or document,
        kind=kind,
        split=split,
        text="x",
        lang="",
        image=ImageRef(Path("x.png"), "image"),
    )


def sides(entries):
    return {e.id: e.split for e in entries}


@given(
    documents=st.lists(st.integers(0, 9), min_size=2, max_size=40),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_drawn_splits_are_disjoint_complete_and_independent_of_order(documents, fraction, seed):
    entries = [entry(n, f"d{document}") for n, document in enumerate(documents)]
    if len(set(documents)) < 2:
        with pytest.raises(SplitError, match="at least two documents"):
            assign_splits(entries, fraction, seed, "s")
        return
    drawn = assign_splits(entries, fraction, seed, "s")
    of_document = {e.document: set() for e in drawn}
    for e in drawn:
        of_document[e.document].add(e.split)
    assert all(len(found) == 1 for found in of_document.values())
    held_out = sum(found == {"heldout"} for found in of_document.values())
    assert held_out == min(max(1, round(fraction * len(of_document))), len(of_document) - 1)
    assert sides(assign_splits(entries[::-1], fraction, seed, "s")) == sides(drawn)


def test_seed_changes_the_draw():
    entries = [entry(n, f"d{n}") for n in range(20)]
    draws = {tuple(sides(assign_splits(entries, 0.5, seed, "s")).values()) for seed in range(5)}
    assert len(draws) == 5


def test_documents_of_a_group_stay_together():
    entries = [entry(n, f"d{n}", group=f"g{n % 3}") for n in range(12)]
    for seed in range(5):
        by_group = {}
        for e in assign_splits(entries, 0.3, seed, "s"):
            by_group.setdefault(e.group, set()).add(e.split)
        assert sorted(map(len, by_group.values())) == [1, 1, 1]


def test_stated_splits_are_kept():
    entries = [entry(0, "a", split="heldout"), entry(1, "b", split="calibration")]
    assert sides(assign_splits(entries, 0.9, 0, "s")) == {"p0": "heldout", "p1": "calibration"}


@pytest.mark.parametrize("field", ["document", "group"])
def test_document_on_both_sides(field):
    same = {"document": "a", "group": None} if field == "document" else {"document": None, "group": "g"}
    entries = [
        entry(n, same["document"] or f"d{n}", group=same["group"], split=split)
        for n, split in enumerate(["calibration", "heldout"])
    ]
    with pytest.raises(
        SplitError,
        match=r"s, document [ag]: expected all its pages in one split, got p0 in calibration, p1 in heldout",
    ):
        assign_splits(entries, 0.5, 0, "s")


def test_split_for_some_only():
    entries = [entry(0, "a", split="heldout"), entry(1, "b")]
    with pytest.raises(
        SplitError, match=r"s: expected a split for every page or for none, got 1 of 2 .*not p1"
    ):
        assign_splits(entries, 0.5, 0, "s")


@pytest.mark.parametrize(("given_split", "missing"), [("calibration", "heldout"), ("heldout", "calibration")])
def test_an_empty_side(given_split, missing):
    entries = [entry(n, f"d{n}", split=given_split) for n in range(3)]
    with pytest.raises(SplitError, match=f"s: expected at least one {missing} page, got none among 3; give"):
        assign_splits(entries, 0.5, 0, "s")


def make_split(kinds, num_documents=5):
    entries = []
    for kind, count in kinds.items():
        for _ in range(count):
            number = len(entries)
            entries.append(entry(number, f"d{number % num_documents}", kind=kind, split="calibration"))
    return [*entries, entry(9999, "other", split="heldout")]


@pytest.mark.parametrize(
    ("kinds", "wanted", "expected"),
    [
        ({"line": 250, "block": 50}, 48, {"line": 40, "block": 8}),
        ({"line": 97, "block": 2, "page": 1}, 10, {"line": 8, "block": 1, "page": 1}),
        ({"line": 97, "block": 2, "page": 1}, 2, {"line": 1, "block": 1}),
        ({"line": 97, "block": 2, "page": 1}, 1, {"line": 1}),
        ({"line": 5, "block": 5}, 9, {"line": 4, "block": 5}),
        ({"line": 3}, 50, {"line": 3}),
        ({"line": 3, "page": 1}, None, {"line": 3, "page": 1}),
    ],
)
def test_kinds_keep_their_share(kinds, wanted, expected):
    chosen = select(make_split(kinds), {"calibration": wanted, "heldout": None}, 0)
    assert Counter(e.kind for e in chosen if e.split == "calibration") == expected
    assert chosen[-1].id == "p9999"


def test_few_pages_come_from_many_documents():
    entries = [entry(n, "long") for n in range(100)] + [entry(100 + n, f"d{n}") for n in range(9)]
    entries = [dataclasses.replace(e, split="calibration") for e in entries]
    chosen = select(entries, {"calibration": 10, "heldout": None}, 3)
    assert len({e.document for e in chosen}) == 10


def test_selection_depends_on_seed_and_names_only():
    entries = make_split({"line": 60, "block": 20})
    wanted = {"calibration": 12, "heldout": 1}
    first = select(entries, wanted, 0)
    assert first == [e for e in entries if e in first], "the old order is kept"
    assert {e.id for e in select(entries[::-1], wanted, 0)} == {e.id for e in first}
    assert {e.id for e in select(entries, wanted, 1)} != {e.id for e in first}
    assert {e.id for e in select(entries, {**wanted, "calibration": 6}, 0)} <= {e.id for e in first}
