"""What a call costs a device: launches that do not grow with the number of images, and nothing read back."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ocrquant.models.vision import encoder

READ_BACKS = {"_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero"}


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def launches(self):
        views = {"view", "slice", "select", "unbind", "split", "t", "transpose", "detach", "alias"}
        return sum(count for name, count in self.counts.items() if name not in views)


@pytest.fixture
def attention_apart(monkeypatch):
    """The reference of attention goes through segments one by one; the tower around it must not."""

    def stand_in(q, k, v, starts, scale, out):
        out.view(v.shape).copy_(v)

    monkeypatch.setattr(encoder, "packed_attention", stand_in)


def count(pair, grids, *, are_known=False):
    """Operations of a call, its grids' positions at hand or to be made."""
    pair.tower.tables.forget()
    pixels = pair.pixels(grids)
    if are_known:
        pair.tower.encode(pixels, grids)
    with Counting() as counting:
        pair.tower.encode(pixels, grids)
    return counting


@pytest.mark.parametrize("are_known", [True, False])
def test_launches_do_not_grow_with_images(pair32, attention_apart, are_known):
    few = count(pair32, [(1, 4, 6), (1, 2, 4)], are_known=are_known)
    many = count(pair32, [(1, 2, 2 * n) for n in range(1, 25)], are_known=are_known)
    copies = 0 if are_known else 3  # tables that are kept, a new size
    assert many.launches - copies * 24 == few.launches - copies * 2 > 20


def test_nothing_is_read_back(pair32, attention_apart):
    counted = count(pair32, [(1, 4, 6), (2, 2, 4), (1, 2, 4)]).counts
    assert not READ_BACKS & set(counted)
    with Counting() as planted:
        torch.ones(3).sum().item()
    assert READ_BACKS & set(planted.counts)
