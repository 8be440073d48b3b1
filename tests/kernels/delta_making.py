"""Rows for the kernels of the gated delta rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ocrquant.kernels.extension import extension

BF16 = torch.bfloat16
GROUPS, HEADS = 2, 4
Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rows(count: int, key_dim: int, value_dim: int, seed: int = 0) -> Rows:
    """mixed, a, b, a_log, dt_bias; gates from nearly 1 to nearly 0."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(count, 2 * GROUPS * key_dim + HEADS * value_dim, generator=generator).to(BF16)
    a, b = torch.randn(2, count, HEADS, generator=generator).to(BF16)
    dt_bias, a_log = torch.randn(HEADS, generator=generator), torch.linspace(-4, 1, HEADS)
    return mixed, a, b, a_log, dt_bias


def some(source: Rows, *parts: slice) -> Rows:
    """Rows of the parts, one after another."""
    mixed, a, b = (torch.cat([x[p] for p in parts]) for x in source[:3])
    return mixed, a, b, *source[3:]


def same_bits(a: Tensor, b: Tensor) -> bool:
    kind = torch.int16 if a.element_size() == 2 else torch.int32
    return a.dtype == b.dtype and torch.equal(a.view(kind), b.view(kind))


@contextmanager
def threads(count: int) -> Iterator[None]:
    native = extension()
    before = native.num_threads()
    native.set_num_threads(count)
    try:
        yield
    finally:
        native.set_num_threads(before)


@contextmanager
def plain_instructions() -> Iterator[None]:
    extension().force_isa("plain")
    try:
        yield
    finally:
        extension().force_isa("auto")
