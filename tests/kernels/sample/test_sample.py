"""Choosing tokens: ties, gaps, broken rows, the nucleus by hand, the distribution, one row at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ocrquant.kernels.extension import extension
from ocrquant.kernels.program import capture
from ocrquant.kernels.sample import Purpose, sample, uniform
from ocrquant.kernels.sample.reference import nucleus, sample_reference

OPS = pytest.mark.parametrize("op", [sample, sample_reference])
NAN, INF = float("nan"), float("inf")


def choose(
    op, logits: Tensor, temperature=0.0, top_p=1.0, seed=(1, 2), first_position=0
) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    tokens, gap = torch.full((rows,), -9, dtype=torch.int32), torch.full((rows,), -9.0)
    positions = torch.arange(first_position, first_position + rows, dtype=torch.int32)
    seeds = torch.tensor([seed], dtype=torch.int32).expand(rows, 2).contiguous()
    op(logits, torch.full((rows,), temperature), torch.full((rows,), top_p), seeds, positions, tokens, gap)
    return tokens, gap


@OPS
@pytest.mark.parametrize(
    ("row", "token", "gap"),
    [
        ([1.0, 3.0, 2.5], 1, 0.5),
        ([3.0, 1.0, 3.0], 0, 0.0),
        ([0.0, -0.0, 0.0], 0, 0.0),
        ([NAN, -2.0, NAN, -1.5], 3, 0.5),
        ([NAN, NAN], 0, 0.0),
        ([-INF, -INF], 0, 0.0),
        ([-INF, 4.0], 1, INF),
        ([INF, 4.0, INF], 0, 0.0),
        ([4.0], 0, INF),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN])
def test_greedy_rows(op, row, token, gap, temperature) -> None:
    for width in (len(row), 61):
        # Wider rows end in what never wins, so that every lane of a kernel is asked.
        padded = torch.tensor([row + [NAN] * (width - len(row))])
        got = choose(op, padded, temperature)
        assert (int(got[0]), float(got[1])) == (token, gap)


@OPS
def test_the_largest_is_found_anywhere(op) -> None:
    torch.manual_seed(0)
    logits = torch.randn(67, 67)
    logits[torch.arange(67), torch.arange(67)] = 9.0
    tokens, gap = choose(op, logits)
    assert tokens.tolist() == list(range(67))
    top = logits.topk(2, dim=1).values
    assert torch.equal(gap, top[:, 0] - top[:, 1])


@OPS
@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.0, {1}),
        (0.49, {1}),
        (0.51, {1, 3}),
        (0.7, {1, 3}),
        (0.8, {0, 1, 3}),
        (0.94, {0, 1, 2, 3}),
        (1.0, {0, 1, 2, 3, 4}),
    ],
)
def test_the_nucleus_by_hand(op, top_p, kept) -> None:
    # 0 and 2 are equal: the lower index comes first.
    logits = torch.tensor([[0.1, 0.5, 0.1, 0.25, 0.05]]).log().expand(600, 5).contiguous()
    logits[:, 2] = logits[:, 0]
    tokens, _ = choose(op, logits, 1.0, top_p)
    assert set(tokens.tolist()) == kept


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (2.0, 0.6)])
def test_the_distribution(temperature, top_p) -> None:
    torch.manual_seed(3)
    row, draws = torch.randn(12) * 1.5, 40_000
    tokens, _ = choose(sample, row.expand(draws, 12).contiguous(), temperature, top_p)
    p = torch.softmax(row.double() / temperature, dim=0).numpy()
    order = np.argsort(-p)
    kept = order[: int((np.cumsum(p[order]) >= top_p).argmax()) + 1] if top_p < 1 else order
    expected = np.zeros(12)
    expected[kept] = draws * p[kept] / p[kept].sum()
    counts = np.bincount(tokens.numpy(), minlength=12)
    assert (counts[expected == 0] == 0).all()
    live = expected > 0
    # Five standard deviations of a chi-square: fails for a wrong distribution, not by chance at this seed.
    degrees = live.sum() - 1
    assert ((counts - expected)[live] ** 2 / expected[live]).sum() < degrees + 5 * (2 * degrees) ** 0.5


@OPS
@pytest.mark.parametrize("row", [[NAN, 1.0, NAN, 1.0], [-INF, 2.0, -INF, 2.0]])
def test_what_is_not_a_number_is_never_drawn(op, row) -> None:
    tokens, _ = choose(op, torch.tensor([row]).expand(100, 4).contiguous(), 1.0)
    assert set(tokens.tolist()) == {1, 3}


@OPS
def test_infinite_logits_share_the_draw(op) -> None:
    tokens, _ = choose(op, torch.tensor([[INF, 1.0, INF]]).expand(100, 3).contiguous(), 1.0)
    assert set(tokens.tolist()) == {0, 2}


@OPS
def test_a_row_does_not_depend_on_the_batch(op) -> None:
    torch.manual_seed(5)
    logits = torch.randn(9, 501) * 2
    together = choose(op, logits, 0.9, 0.9)
    for i in range(9):
        alone = choose(op, logits[i : i + 1], 0.9, 0.9, first_position=i)
        assert (int(alone[0]), float(alone[1])) == (int(together[0][i]), float(together[1][i]))


@pytest.mark.parametrize("gain", [0.0, 0.01, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95, 0.9999, 1.0])
@pytest.mark.parametrize("width", [1, 5, 1000, 20_011])
def test_draws_what_the_definition_draws(gain, top_p, width) -> None:
    torch.manual_seed(width)
    logits = torch.randn(16, width) * gain
    logits[:, width // 2] = NAN if width > 1 else 0.5
    got, wanted = (choose(op, logits, 0.8, top_p, seed=(-7, 3)) for op in (sample, sample_reference))
    assert torch.equal(got[1], wanted[1])
    for i in (got[0] != wanted[0]).nonzero().flatten().tolist():
        assert_on_a_border(logits[i], top_p, i, int(got[0][i]))


def assert_on_a_border(row: Tensor, top_p: float, position: int, token: int) -> None:
    """The token that float32 chose is a neighbour, and the number lies within 1e-6 of the border between."""
    wide = np.where(np.isnan(row.numpy()), -np.inf, row.double().numpy())
    weights = np.exp((wide - wide.max()) / float(torch.tensor(0.8)))
    kept = nucleus(wide, weights, float(torch.tensor(top_p)))
    cumulative = np.cumsum(weights[kept]) / weights[kept].sum()
    at = int(np.searchsorted(kept, token))
    assert kept[at] == token
    u = uniform((-7, 3), position)
    assert cumulative[at] - weights[token] / weights[kept].sum() - 1e-6 < u < cumulative[at] + 1e-6


def test_the_border_test_can_fail() -> None:
    row = torch.zeros(1000)
    with pytest.raises(AssertionError):
        assert_on_a_border(row, 1.0, 0, (int(uniform((-7, 3), 0) * 1000) + 2) % 1000)


def test_native_numbers_are_those_of_the_definition() -> None:
    for seed in ((0, 0), (1, -1), (-(2**31), 2**31 - 1)):
        for position in (0, 1, 77, 2**31 - 1):
            for purpose in Purpose:
                assert extension().uniform(*seed, position, int(purpose)) == uniform(seed, position, purpose)


def test_the_plain_build_chooses_the_same() -> None:
    torch.manual_seed(8)
    logits = torch.randn(20, 5003) * 3
    best = choose(sample, logits, 0.7, 0.9)
    extension().force_isa("plain")
    try:
        plain = choose(sample, logits, 0.7, 0.9)
    finally:
        extension().force_isa("auto")
    assert torch.equal(best[0], plain[0])
    assert torch.equal(best[1], plain[1])


def test_a_program_follows_logits_and_temperature() -> None:
    logits, heat, top_p = torch.randn(3, 40), torch.zeros(3), torch.ones(3)
    seed, position = torch.zeros(3, 2, dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    tokens, gap = torch.full((3,), -1, dtype=torch.int32), torch.zeros(3)
    with capture() as program:
        sample(logits, heat, top_p, seed, position, tokens, gap)
    assert (tokens == -1).all()
    for temperature in (0.0, 5.0):
        heat.fill_(temperature)
        logits.neg_()
        program.run()
        assert torch.equal(tokens, choose(sample, logits, temperature, seed=(0, 0))[0])
