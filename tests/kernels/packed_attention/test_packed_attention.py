"""Bidirectional attention inside segments against a dense softmax in float64, on views of q|k|v."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.kernels.packed_attention import packed_attention
from ocrquant.kernels.packed_attention.reference import packed_attention_reference
from ocrquant.kernels.program import capture
from tests.kernels.producing import LEVELS, instruction_set, needs_native, threads

OPS = pytest.mark.parametrize("op", [packed_attention, packed_attention_reference])
HEADS = 2


def rows(lengths, head_dim, dtype=torch.bfloat16, seed=0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return (torch.randn(int(starts[-1]), 3, HEADS, head_dim) * 1.5).to(dtype), starts


def run(op, qkv: Tensor, starts: Tensor) -> Tensor:
    out = torch.full((qkv.shape[0], HEADS * qkv.shape[-1]), 9.0, dtype=qkv.dtype)
    op(*qkv.unbind(1), starts, qkv.shape[-1] ** -0.5, out)
    return out


def dense(qkv: Tensor, starts: Tensor) -> Tensor:
    results = []
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        q, k, v = qkv[begin:end].double().permute(1, 2, 0, 3).unbind(0)
        weights = torch.softmax(q @ k.mT * qkv.shape[-1] ** -0.5, dim=-1)
        results.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(results)


@OPS
@pytest.mark.parametrize("head_dim", [8, 48, 64, 72, 80, 128])
def test_equals_a_dense_softmax(op, head_dim) -> None:
    qkv, starts = rows([1, 70, 3, 0, 129], head_dim)
    got = run(op, qkv, starts)
    assert torch.allclose(got.double(), dense(qkv, starts), rtol=2.0**-8, atol=2.0**-9)


@OPS
@pytest.mark.parametrize("head_dim", [32, 64, 72])
def test_a_large_image(op, head_dim) -> None:
    """Longer than a span of 512 keys, twice, and ragged."""
    qkv, starts = rows([1100, 40], head_dim)
    got = run(op, qkv, starts)
    assert torch.allclose(got.double(), dense(qkv, starts), rtol=2.0**-8, atol=2.0**-9)


@OPS
def test_float64_is_computed_in_float64(op) -> None:
    qkv, starts = rows([5, 66], 64, torch.float64)
    assert torch.allclose(run(op, qkv, starts), dense(qkv, starts), rtol=1e-12, atol=1e-12)


@OPS
def test_a_segment_sees_nothing_of_the_others(op) -> None:
    qkv, starts = rows([5, 66, 9], 64)
    before = run(op, qkv, starts)[5:71]
    qkv[:5] = float("nan")
    qkv[71:] = float("inf")
    assert torch.equal(run(op, qkv, starts)[5:71], before)


@OPS
def test_rows_of_no_segment_are_left_alone(op) -> None:
    qkv, _ = rows([20], 64)
    got = run(op, qkv, torch.tensor([3, 8], dtype=torch.int32))
    assert (got[:3] == 9).all()
    assert (got[8:] == 9).all()


@needs_native
@pytest.mark.parametrize("head_dim", [32, 64, 72, 96])
def test_bits_do_not_depend_on_other_segments_or_threads(head_dim) -> None:
    qkv, starts = rows([64, 700, 5, 1, 17], head_dim)
    with threads(2):
        together = run(packed_attention, qkv, starts)
    with threads(1):
        for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            alone = run(packed_attention, qkv[begin:end], torch.tensor([0, end - begin], dtype=torch.int32))
            assert torch.equal(alone, together[begin:end])


@needs_native
@pytest.mark.parametrize("isa", LEVELS)
def test_scores_of_any_size_and_sign(isa) -> None:
    """One key takes all, wherever it lies; a negative scale turns that round."""
    qkv, starts = rows([600], 64)
    qkv[:, 0], qkv[:, 1] = 8.0, -8.0
    qkv[517, 1] = 8.0
    with instruction_set(isa):
        got = run(packed_attention, qkv, starts)
        out = torch.empty_like(got)
        packed_attention(-qkv[:, 0], *qkv.unbind(1)[1:], starts, -(64**-0.5), out)
    assert torch.equal(got, qkv[517, 2].flatten().expand_as(got))
    assert torch.equal(out, got)


@needs_native
@pytest.mark.parametrize("size", [1e3, 1e5, 1e8])
@pytest.mark.parametrize("isa", LEVELS)
def test_vast_scores(isa, size) -> None:
    """Largest scores are rounded by more than an exponent holds, and one key takes all, all the same."""
    qkv, starts = rows([600, 40, 17], 64)
    qkv[:, :2] *= size
    with instruction_set(isa):
        got = run(packed_attention, qkv, starts)
    assert torch.allclose(got.double(), dense(qkv, starts), rtol=2.0**-8, atol=2.0**-9)


@needs_native
def test_equal_rows_of_a_segment_have_equal_bits() -> None:
    """Whatever tile a row is in: its sums are its own."""
    qkv, starts = rows([531], 64)
    qkv[:, 0] = qkv[0, 0]
    got = run(packed_attention, qkv, starts)
    assert torch.equal(got, got[:1].expand_as(got))


@needs_native
@pytest.mark.parametrize("head_dim", [64, 72])
@pytest.mark.parametrize("isa", LEVELS)
def test_every_instruction_set(isa, head_dim) -> None:
    qkv, starts = rows([70, 600, 1, 33], head_dim)
    with instruction_set(isa):
        got = run(packed_attention, qkv, starts)
    assert torch.allclose(got.double(), dense(qkv, starts), rtol=2.0**-8, atol=2.0**-9)


def test_a_program_follows_the_rows() -> None:
    qkv, starts = rows([30, 9], 48)
    out = torch.zeros(39, HEADS * 48).bfloat16()
    with capture() as program:
        packed_attention(*qkv.unbind(1), starts, 48**-0.5, out)
    assert (out == 0).all()
    qkv.mul_(0.5)
    program.run()
    assert torch.equal(out, run(packed_attention, qkv, starts))
