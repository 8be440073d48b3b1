"""Requests with random keys, laid out in pages in any order, for the tests of paged attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.formats import fp8

K_SCALE, V_SCALE = 0.03, 0.02


@dataclass
class Paged:
    """Requests of one call; `keys[i]`, `values[i]` [kv_len, nkv, hd] and the queries of its last rows."""

    queries: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]

    def run(
        self, op, *, page_size=16, seed=0, poison=float("nan"), causal=True, cache="same", chunks=None
    ) -> list[Tensor]:
        """What each request gives, [rows, nq * hd]; `chunks`: rows of a request that one call computes."""
        torch.manual_seed(seed)
        k_cache, v_cache, table = self._pages(page_size, poison, cache == "fp8")
        scales = (K_SCALE, V_SCALE) if cache == "fp8" else (1.0, 1.0)
        results: list[list[Tensor]] = [[] for _ in self.queries]
        done = [0] * len(self.queries)
        while any(d < q.shape[0] for d, q in zip(done, self.queries, strict=True)):
            parts = [q[d : d + (chunks or q.shape[0])] for d, q in zip(done, self.queries, strict=True)]
            rows = [p.shape[0] for p in parts]
            lengths = [
                k.shape[0] - (q.shape[0] - d - m)
                for k, q, d, m in zip(self.keys, self.queries, done, rows, strict=True)
            ]
            q = torch.cat(parts)
            out = torch.full((q.shape[0], q.shape[1] * q.shape[2]), 9.0, dtype=q.dtype)
            q_start = torch.tensor([0, *rows], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            kv_len = torch.tensor(lengths, dtype=torch.int32)
            op(q, k_cache, v_cache, table, q_start, kv_len, q.shape[-1] ** -0.5, out, causal, *scales)
            for i, part in enumerate(out.split(rows)):
                results[i].append(part)
                done[i] += rows[i]
        return [torch.cat(parts) for parts in results]

    def _pages(self, page_size: int, poison: float, eight_bits: bool) -> tuple[Tensor, Tensor, Tensor]:
        counts = [-(-k.shape[0] // page_size) for k in self.keys]
        total = sum(counts) + 3
        order = torch.randperm(total, dtype=torch.int32)
        table = torch.full((len(counts), max(*counts, 1) + 1), 2**30, dtype=torch.int32)
        shape = (total, page_size, *self.keys[0].shape[1:])
        caches = [torch.full(shape, poison, dtype=self.keys[0].dtype) for _ in "kv"]
        at = 0
        for i, count in enumerate(counts):
            table[i, :count] = order[at : at + count]
            position = torch.arange(self.keys[i].shape[0])
            pages = table[i, position // page_size].long()
            for cache, rows in zip(caches, (self.keys[i], self.values[i]), strict=True):
                cache[pages, position % page_size] = rows
            at += count
        if eight_bits:
            caches = [
                fp8.encode(c, torch.tensor([s])).view(torch.uint8)
                for c, s in zip(caches, (K_SCALE, V_SCALE), strict=True)
            ]
        return caches[0], caches[1], table


def paged(
    lengths, rows, *, heads=4, kv_heads=2, head_dim=64, dtype=torch.bfloat16, seed=1, gain=2.0
) -> Paged:
    """Requests of `lengths` keys of which the last `rows` have queries."""
    torch.manual_seed(seed)

    def make(count: int, n: int, by: float = 1.0) -> Tensor:
        return (torch.randn(count, n, head_dim) * by).to(dtype)

    return Paged(
        [make(m, heads, gain) for m in rows],
        [make(length, kv_heads) for length in lengths],
        [make(length, kv_heads) for length in lengths],
    )


def dense(case: Paged, *, causal=True, cache="same") -> list[Tensor]:
    """The same in float64 by a loop over rows and heads, from the values that the cache holds."""
    results = []
    for q, k, v in zip(case.queries, case.keys, case.values, strict=True):
        if cache == "fp8":
            k, v = (fp8.encode(x, torch.tensor([s])).double() * s for x, s in ((k, K_SCALE), (v, V_SCALE)))
        q, k, v = q.double(), k.double(), v.double()
        rows, heads, head_dim = q.shape
        out = torch.zeros(rows, heads, head_dim, dtype=torch.float64)
        for j in range(rows):
            seen = k.shape[0] - rows + j + 1 if causal else k.shape[0]
            for h in range(heads if seen > 0 else 0):
                g = h // (heads // k.shape[1])
                weight = torch.softmax(k[:seen, g] @ q[j, h] * head_dim**-0.5, dim=0)
                out[j, h] = weight @ v[:seen, g]
        results.append(out.flatten(1))
    return results
