"""Acceptance by position, and the cursor of ReplaySSM in the long run."""

import json
import random

import pytest
import torch

from ocrquant.cost import Acceptance, replay_traffic
from ocrquant.engine.statistics import DecodeStatistics
from ocrquant.errors import ArtifactError, RecipeError
from ocrquant.kernels.replay import Cursors, move_cursors


def test_tokens_of_a_step_are_one_more_than_the_drafts_that_survive():
    found = Acceptance((0.5, 0.25, 0.25))
    assert found.max_block == 4
    assert found.tokens(1) == 1.0
    assert found.tokens(4) == 2.0
    assert found.emitted(4) == [0.5, 0.25, 0.0, 0.25]
    assert found.emitted(2) == [0.5, 0.5]
    assert found.emitted(1) == [1.0]


@pytest.mark.parametrize("length", [1.0, 1.5, 9.0, 12.0, 16.0])
def test_a_length_is_met_by_one_chance_for_every_draft(length):
    found = Acceptance.of_length(length, 16)
    assert found.tokens(16) == pytest.approx(length, abs=1e-9)
    assert sum(k * p for k, p in enumerate(found.emitted(16), 1)) == pytest.approx(length, abs=1e-9)
    chance = found.survival[0]
    assert found.survival == pytest.approx([chance**j for j in range(1, 16)])


@pytest.mark.parametrize("length", [0.9, 16.5])
def test_a_length_that_no_window_emits_is_refused(length):
    with pytest.raises(RecipeError, match=r"1 to 16 tokens a step"):
        Acceptance.of_length(length, 16)


@pytest.mark.parametrize("survival", [(0.5, 0.6), (1.1,), (-0.1,), (float("nan"),)])
def test_chances_that_rise_or_are_none_are_refused(survival):
    with pytest.raises(RecipeError, match="acceptance of the first"):
        Acceptance(survival)


def test_measured_acceptance_is_read_as_chances_or_counts(tmp_path):
    path = tmp_path / "acceptance.json"
    path.write_text(json.dumps({"accepted_by_position": [0.5, 0.25]}))
    assert Acceptance.load(path) == Acceptance((0.5, 0.25))
    path.write_text(json.dumps({"steps": 8, "accepted_by_position": [4, 2]}))
    assert Acceptance.load(path) == Acceptance((0.5, 0.25))
    path.write_text(json.dumps({"pages": 3, "guesses": {"windows": 9, "survival": [0.5, 0.25]}}))
    assert Acceptance.load(path) == Acceptance((0.5, 0.25))


def test_what_the_engine_records_is_what_is_read():
    """`ocrquant run` writes this record under ``guesses``."""
    statistics = DecodeStatistics()
    for rows in (3, 1):
        statistics.drafts.add(3, rows, 0)
    found = Acceptance(tuple(statistics.record()["survival"]))
    assert found == Acceptance((0.5, 0.5, 0.0))
    assert found.tokens(4) == 2.0  # three rows, then one


@pytest.mark.parametrize(
    "text", ["{", '{"guesses": null}', "[]", "{}", '{"accepted_by_position": 3}', '{"steps": 0}']
)
def test_a_malformed_file_is_named(tmp_path, text):
    path = tmp_path / "acceptance.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"acceptance\.json: expected acceptance by position"):
        Acceptance.load(path)


@pytest.mark.parametrize(
    ("history", "uniform", "always_twelve"),
    [(32, 1.0, 1.0), (48, 0.38, 0.50), (64, 0.22, 1 / 3), (80, 0.16, 0.20)],
)
def test_folds_of_windows_of_sixteen(history, uniform, always_twelve):
    """Shares that simulations of the published rule gave; with 12 of 16 always kept they follow by hand."""
    assert replay_traffic([1 / 16] * 16, history).flush_rate == pytest.approx(uniform, abs=0.005)
    twelve = [0.0] * 11 + [1.0] + [0.0] * 4
    assert replay_traffic(twelve, history).flush_rate == pytest.approx(always_twelve, abs=1e-9)


def test_live_records_by_hand():
    """12 of 16 kept in a history of 64: the cursor goes 12, 24, 36 and folds."""
    found = replay_traffic([0.0] * 11 + [1.0] + [0.0] * 4, 64)
    assert found.live_records == pytest.approx((12 + 24 + 36) / 3)


def test_the_cursors_of_the_runtime_fold_as_often():
    window, history, steps = 4, 20, 4000
    emitted = Acceptance.of_length(2.5, window).emitted(window)
    base, write_pos, flush, flushes = torch.zeros(4, 1, dtype=torch.int32)
    cursors = Cursors(base, write_pos, flush, flushes, history=history, window=window)
    slots = torch.zeros(1, dtype=torch.int32)
    rng, live = random.Random(0), 0
    for _ in range(steps):
        live += int(write_pos)
        (accepted,) = rng.choices(range(1, window + 1), emitted)
        move_cursors(cursors, 32, slots, accepted=torch.tensor([accepted], dtype=torch.int32))
    found = replay_traffic(emitted, history)
    assert int(flushes) / steps == pytest.approx(found.flush_rate, abs=0.01)
    assert live / steps == pytest.approx(found.live_records, rel=0.02)


def test_a_history_below_two_windows_is_refused():
    with pytest.raises(RecipeError, match="at least 8, twice the window"):
        replay_traffic([0.25] * 4, 7)
