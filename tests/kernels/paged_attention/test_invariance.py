"""The bits of a row of paged attention: the same in any page, chunk, batch, and on any number of threads."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.extension import extension
from ocrquant.kernels.paged_attention import paged_attention
from ocrquant.kernels.program import capture
from tests.kernels.paged_attention.paged_case import Paged, dense, paged


@pytest.fixture(params=[1, 2])
def threads(request):
    """The native threads of a test; two of them split few requests by spans of keys."""
    native = extension()
    before = native.num_threads()
    native.set_num_threads(request.param)
    yield request.param
    native.set_num_threads(before)


def mixed(**shape) -> Paged:
    """Decode rows over several spans, parts of prompts, and short ones; NaN wherever no key lies."""
    return paged([1, 700, 65, 1100, 130, 64], [1, 1, 65, 3, 70, 2], **shape)


def same(got, wanted) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("cache", ["same", "fp8"])
@pytest.mark.parametrize("page_size", [1, 5, 16, 64, 2000])
def test_pages_and_what_lies_in_unused_ones_do_not_matter(page_size, cache) -> None:
    case = mixed()
    wanted = case.run(paged_attention, cache=cache)
    same(case.run(paged_attention, page_size=page_size, seed=page_size, poison=7.0, cache=cache), wanted)


@pytest.mark.parametrize("chunks", [1, 7, 16, 64])
@pytest.mark.parametrize("shape", [{}, {"heads": 3, "kv_heads": 1, "head_dim": 72}])
def test_chunks_do_not_matter(chunks, shape, threads) -> None:
    case = paged([300, 70, 1200], [300, 70, 90], **shape)
    same(case.run(paged_attention, chunks=chunks), case.run(paged_attention))


@pytest.mark.parametrize("head_dim", [64, 256])
def test_the_batch_does_not_matter(head_dim, threads) -> None:
    case = mixed(heads=8, head_dim=head_dim)
    together = case.run(paged_attention)
    for i, wanted in enumerate(together):
        alone = Paged(case.queries[i : i + 1], case.keys[i : i + 1], case.values[i : i + 1])
        same(alone.run(paged_attention), [wanted])


def test_threads_do_not_matter() -> None:
    native, results = extension(), []
    before = native.num_threads()
    for count in (1, 2):
        native.set_num_threads(count)
        results.append(paged([3000], [2], heads=8).run(paged_attention))
    native.set_num_threads(before)
    same(*results)


def test_later_keys_of_its_own_request_do_not_reach_a_row(threads) -> None:
    case = paged([600], [90])
    before = case.run(paged_attention)[0][:20]
    case.keys[0][530:] = float("nan")
    case.values[0][530:] = float("inf")
    got = case.run(paged_attention)[0]
    assert torch.equal(got[:20], before)
    assert got[20:].isnan().all()


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512", "amx"])
@pytest.mark.parametrize("cache", ["same", "fp8"])
@pytest.mark.parametrize("head_dim", [72, 64, 96])  # the last two go through tiles where there are any
def test_every_instruction_set(isa, cache, head_dim) -> None:
    native = extension()
    order = ["plain", "avx2", "avx512", "amx"]
    if order.index(isa) > order.index(native.best_isa()):
        pytest.skip(f"this processor has no {isa}")
    native.force_isa(isa)
    try:
        case = mixed(head_dim=head_dim)
        wanted = case.run(paged_attention, cache=cache)
        same(case.run(paged_attention, cache=cache, chunks=3), wanted)
        for one, other in zip(wanted, dense(case, cache=cache), strict=True):
            assert torch.allclose(one.double(), other, rtol=2.0**-8, atol=2.0**-9)
    finally:
        native.force_isa("auto")


def test_a_program_follows_lengths_and_pages() -> None:
    torch.manual_seed(0)
    q, cache = torch.randn(2, 2, 32).bfloat16(), torch.randn(9, 16, 1, 32).bfloat16()
    out, wanted = torch.zeros(2, 64).bfloat16(), torch.zeros(2, 64).bfloat16()
    table, starts, length = (torch.tensor(x, dtype=torch.int32) for x in ([[1, 2]] * 2, [0, 1, 2], [3, 9]))
    with capture() as program:
        paged_attention(q, cache, cache, table, starts, length, 0.2, out)
    assert (out == 0).all()
    for lengths, pages in (([3, 9], [[1, 2], [0, 4]]), ([32, 17], [[8, 7], [3, 3]])):
        length.copy_(torch.tensor(lengths))
        table.copy_(torch.tensor(pages))
        q.neg_()
        program.run()
        paged_attention(q, cache, cache, table, starts, length, 0.2, wanted)
        assert torch.equal(out, wanted)
