"""Tokens from logits in Triton: ties, gaps and broken rows by hand, draws and numbers as defined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from ocrquant.kernels.sample import Purpose, sample, uniform
from ocrquant.kernels.sample import triton as kernels
from ocrquant.kernels.sample.reference import nucleus, sample_reference
from ocrquant.kernels.sample.triton import uniform as device_uniform
from ocrquant.kernels.selection import choices
from tests.kernels.triton.cases.making import DEVICE, i32

NAN, INF = float("nan"), float("inf")


def choose(op, logits, temperature=0.0, top_p=1.0, seed=(1, 2)):
    rows = len(logits)
    tokens, gap = i32(*[-9] * rows), torch.full((rows,), -9.0, device=DEVICE)
    heats, limits = (torch.tensor([x] * rows, device=DEVICE) for x in (temperature, top_p))
    positions = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    op(logits.to(DEVICE), heats, limits, i32(*seed * rows).view(rows, 2), positions, tokens, gap)
    return tokens.tolist(), gap.tolist()


@pytest.mark.parametrize("temperature", [0.0, NAN])
def test_greedy_rows(temperature):
    cases = [
        ([1.0, 3.0, 2.5], 1, 0.5),
        ([3.0, 1.0, 3.0], 0, 0.0),
        ([0.0, -0.0, 0.0], 0, 0.0),
        ([NAN, -2.0, -1.5], 2, 0.5),
        ([NAN, NAN, NAN], 0, 0.0),
        ([-INF, -INF, -INF], 0, 0.0),
        ([-INF, 4.0, -INF], 1, INF),
        ([INF, 4.0, INF], 0, 0.0),
    ]
    tokens, gap = choose(sample, torch.tensor([row for row, _, _ in cases]), temperature)
    assert choices()["sample"].implementation == "triton"
    assert tokens == [token for _, token, _ in cases]
    assert gap == [wanted for _, _, wanted in cases]
    assert choose(sample, torch.tensor([[4.0]])) == ([0], [INF])


def test_a_row_of_several_parts(monkeypatch):
    monkeypatch.setattr(kernels, "_MOST_COLUMNS", 16)
    torch.manual_seed(0)
    wide = torch.full((5, 90), NAN)
    logits = wide[:, :70]  # rows further apart than they are wide, and not a whole number of parts
    logits.copy_(torch.randn(5, 70))
    for row, column in enumerate((0, 15, 16, 47, 69)):
        logits[row, column] = 9.0
    tokens, gap = choose(sample, logits)
    assert tokens == [0, 15, 16, 47, 69]
    top = logits.topk(2, dim=1).values
    assert gap == (top[:, 0] - top[:, 1]).tolist()
    for temperature, limit, rows in ((1.0, 1.0, 5), (0.7, 0.9, 1)):
        logits = torch.randn(rows, 70) * 2
        assert choose(sample, logits, temperature, limit) == choose(
            sample_reference, logits, temperature, limit
        )


def test_the_nucleus_by_hand():
    # 0 and 2 are equal: the lower index comes first.
    logits = torch.tensor([[0.1, 0.5, 0.1, 0.25, 0.05]]).log().expand(3, 5).contiguous()
    logits[:, 2] = logits[:, 0]
    for limit, kept in ((0.0, {1}), (0.49, {1}), (0.7, {1, 3}), (0.8, {0, 1, 3})):
        tokens = choose(sample, logits, 1.0, limit)[0]
        assert set(tokens) <= kept
        assert tokens == choose(sample_reference, logits, 1.0, limit)[0]


@pytest.mark.parametrize(("gain", "top_p"), [(0.0, 0.5), (1.0, 0.95), (60.0, 0.95), (1.0, 1.0)])
def test_draws_what_the_definition_draws(gain, top_p):
    torch.manual_seed(3)
    logits = torch.randn(2 if top_p < 1 else 20, 700) * gain
    logits[:, 350] = NAN
    ours, wanted = (choose(op, logits, 0.8, top_p, seed=(-7, 3)) for op in (sample, sample_reference))
    assert ours[1] == wanted[1]
    for row, (token, defined) in enumerate(zip(ours[0], wanted[0], strict=True)):
        if token != defined:
            assert_on_a_border(logits[row], top_p, row, token)


def assert_on_a_border(row, top_p, position, token):
    """The token is a neighbour, and the number lies within 1e-6 of the border between."""
    wide = np.where(np.isnan(row.numpy()), -np.inf, row.double().numpy())
    weights = np.exp((wide - wide.max()) / float(torch.tensor(0.8)))
    kept = nucleus(wide, weights, float(torch.tensor(top_p)))
    cumulative = np.cumsum(weights[kept]) / weights[kept].sum()
    at = int(np.searchsorted(kept, token))
    assert kept[at] == token
    u = uniform((-7, 3), position)
    assert cumulative[at] - weights[token] / weights[kept].sum() - 1e-6 < u < cumulative[at] + 1e-6


def test_what_is_not_a_number_is_never_drawn():
    for row, allowed in (([NAN, 1.0, NAN, 1.0], {1, 3}), ([INF, 1.0, INF, 0.0], {0, 2})):
        tokens = choose(sample, torch.tensor([row]).expand(20, 4).contiguous(), 1.0)[0]
        assert set(tokens) == allowed


@triton.jit
def number_kernel(seed, position, out, PURPOSE: tl.constexpr):
    number = device_uniform(tl.load(seed), tl.load(seed + 1), tl.load(position), PURPOSE)
    tl.store(out, number)


def test_numbers_are_those_of_the_definition():
    for seed in ((0, 0), (1, -1), (-(2**31), 2**31 - 1)):
        for position in (0, 77, 2**31 - 1):
            for purpose in Purpose:
                out = torch.zeros(1, dtype=torch.float64, device=DEVICE)
                number_kernel[(1,)](i32(*seed), i32(position), out, PURPOSE=int(purpose))
                assert float(out) == uniform(seed, position, purpose)
