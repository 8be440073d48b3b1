"""Which page is for calibration, which is held out, and which of them are taken.

Knows documents, seeds and shares. A document never lies on both sides, and every choice depends on names
and the seed alone, so adding pages or listing them in another order moves as little as possible.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ocrquant.errors import SplitError
from ocrquant.pages.entries import Entry
from ocrquant.pages.page import SPLITS, Split

__all__ = ["assign_splits", "check_both_sides", "order_by_seed", "select"]


def assign_splits(entries: list[Entry], heldout_fraction: float, seed: int, source: str) -> list[Entry]:
    """Entries with a split each: the one that the source states, or one drawn by document.

    Args:
        entries: All entries of a source.
        heldout_fraction: Share of the documents to hold out where the source states no split, in (0, 1).
        seed: Chooses which.
        source: What an error message calls the source.

    Raises:
        SplitError: Some entries state a split and some do not, a document lies on both sides, or one side
            is empty.
    """
    stated = [entry for entry in entries if entry.split is not None]
    if stated and len(stated) < len(entries):
        silent = next(entry for entry in entries if entry.split is None)
        raise SplitError(
            source,
            expected="a split for every page or for none",
            given=f"{len(stated)} of {len(entries)} with one (not {silent.id})",
            fix="state the missing splits or remove the others",
        )
    if not stated:
        entries = _draw(entries, heldout_fraction, seed, source)
    _check_disjoint(entries, source)
    check_both_sides(entries, source)
    return entries


def check_both_sides(entries: list[Entry], source: str) -> None:
    """Refuse entries that leave a split empty.

    Raises:
        SplitError: Nothing to calibrate on, or nothing held out.
    """
    for split in SPLITS:
        if not any(entry.split == split for entry in entries):
            raise SplitError(
                source,
                expected=f"at least one {split} page",
                given=f"none among {len(entries)}",
                fix=f"give some documents the split {split}, or state no split at all",
            )


def select(entries: list[Entry], num_pages: Mapping[Split, int | None], seed: int) -> list[Entry]:
    """At most the asked number of entries of each split, in their old order.

    Kinds keep their share of the split, at least one each as far as the number allows; within a kind the
    documents take turns, so that few pages still come from many documents.

    Args:
        entries: Entries with a split.
        num_pages: Pages wanted of each split; None means all.
        seed: Chooses which.
    """
    chosen: set[str] = set()
    for split in SPLITS:
        members = [entry for entry in entries if entry.split == split]
        wanted = num_pages[split]
        if wanted is None or wanted >= len(members):
            chosen.update(entry.id for entry in members)
            continue
        for kind, quota in _quotas(members, wanted).items():
            turns = order_by_seed([entry for entry in members if entry.kind == kind], seed)
            chosen.update(entry.id for entry in turns[:quota])
    return [entry for entry in entries if entry.id in chosen]


def order_by_seed(entries: Iterable[Entry], seed: int) -> list[Entry]:
    """Entries shuffled by seed, the documents taking turns: first one page of each, then a second of each."""
    by_document: dict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: _rank(seed, entry.id)):
        by_document[entry.document].append(entry)
    turns = [
        (turn, _rank(seed, document), entry)
        for document, members in by_document.items()
        for turn, entry in enumerate(members)
    ]
    return [entry for _, _, entry in sorted(turns, key=lambda item: item[:2])]


def _draw(entries: list[Entry], heldout_fraction: float, seed: int, source: str) -> list[Entry]:
    groups = sorted({entry.group for entry in entries}, key=lambda group: _rank(seed, group))
    if len(groups) < 2:
        raise SplitError(
            source,
            expected="at least two documents, one of them to hold out",
            given=f"{len(entries)} pages of one document ({groups[0]})",
            fix="add pages of another document, or name the documents (document in metadata.jsonl)",
        )
    num_heldout = min(max(1, round(heldout_fraction * len(groups))), len(groups) - 1)
    heldout = set(groups[:num_heldout])
    return [replace(entry, split="heldout" if entry.group in heldout else "calibration") for entry in entries]


def _check_disjoint(entries: list[Entry], source: str) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        for name in {entry.document, entry.group}:
            other = seen.setdefault(name, entry)
            if other.split != entry.split:
                raise SplitError(
                    f"{source}, document {name}",
                    expected="all its pages in one split",
                    given=f"{other.id} in {other.split}, {entry.id} in {entry.split}",
                    fix="move the document to one side",
                )


def _quotas(members: list[Entry], wanted: int) -> dict[str, int]:
    """Largest remainders, after one page for every kind, the most frequent kinds first."""
    sizes: dict[str, int] = defaultdict(int)
    for entry in members:
        sizes[entry.kind] += 1
    kinds = sorted(sizes, key=lambda kind: (-sizes[kind], kind))
    exact = {kind: wanted * sizes[kind] / len(members) for kind in kinds}
    quotas = {kind: min(max(1, int(exact[kind])), sizes[kind]) for kind in kinds}
    while sum(quotas.values()) > wanted:
        # Rare kinds were lifted to one: frequent kinds give way first, then the rarest gives up its one.
        spare = [kind for kind in kinds if quotas[kind] > 1]
        spare = spare or [kind for kind in kinds if quotas[kind] == 1][-1:]
        quotas[max(spare, key=lambda kind: quotas[kind] - exact[kind])] -= 1
    while sum(quotas.values()) < wanted:
        open_kinds = [kind for kind in kinds if quotas[kind] < sizes[kind]]
        neediest = max(open_kinds, key=lambda kind: exact[kind] - quotas[kind])
        quotas[neediest] += 1
    return quotas


def _rank(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest()
