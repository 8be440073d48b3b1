"""Tokens a step, chances by position and speed-ups, against numbers worked out by hand."""

import math

import pytest

from ocrquant.adapters import model_folder
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.request import DraftCounts
from ocrquant.engine.sampling import SamplingParams
from ocrquant.engine.statistics import DecodeStatistics
from ocrquant.engine.step_times import StepTime
from tests.engine.drafters import make_drafter
from tests.engine.reading import prompts

PICO = model_folder("pico")


def counts(windows):
    found = DraftCounts()
    for guessed, rows, alone in windows:
        found.add(guessed, rows, alone)
    return found


def test_counts_by_hand():
    # Three guesses of which all, one and none are right; then one guess, right, in a window filled up.
    found = counts([(3, 4, 2), (3, 2, 1), (3, 1, 0), (1, 3, 1)])
    assert (found.num_windows, found.num_guessed, found.num_accepted, found.num_alone) == (4, 10, 5, 4)
    assert found.tokens_a_step == 1 + 5 / 4
    assert found.tokens_alone == 1 + 4 / 4
    # First guess: 3 of 4. Second: of the two windows that had one and were right so far, 1. Third: 1 of 1.
    assert (found.tried, found.survived) == ([4, 2, 1], [3, 1, 1])
    assert found.survival == pytest.approx([3 / 4, 3 / 8, 3 / 8])
    twice = counts([(3, 4, 2), (3, 2, 1)])
    twice.merge(counts([(3, 1, 0), (1, 3, 1)]))
    assert twice == found


def test_without_windows_nothing_is_made_up():
    assert counts([]).survival == []
    assert math.isnan(counts([]).tokens_a_step)
    statistics = DecodeStatistics()
    for _ in range(2):
        statistics.note(StepTime(1, 1, 0.0, 500.0, 20.0), 1)
    assert statistics.speed_up() is None
    assert statistics.shares() == {}
    assert statistics.lines() == ["guesses: none was verified"]
    assert statistics.record()["tokens_a_step"] is None


def test_speed_up_by_hand():
    statistics = DecodeStatistics(counts([(2, 3, 2), (2, 2, 1), (2, 1, 0), (2, 3, 2)]), flushes=3)
    # s = (3/4, 2/4): a window of three rows emits 2.25 tokens.
    # The first of a kind is recorded, and takes longer.
    statistics.note(StepTime(2, 3, 100.0, 9000.0, 100.0), 5)
    statistics.note(StepTime(2, 1, 0.0, 9000.0, 100.0), 2)
    for _ in range(2):
        statistics.note(StepTime(2, 3, 100.0, 800.0, 100.0), 5)
    statistics.note(StepTime(2, 1, 0.0, 450.0, 50.0), 2)
    found = statistics.speed_up()
    assert found.expected == pytest.approx(2.25 / (1000 / 500))
    assert found.measured == pytest.approx(2.5 / (1000 / 500))
    # Not what a single chance for all positions would give: 4 of 7 tried guesses were right.
    chance = 5 / 7
    assert abs(1 / (1 - chance) - 2.25) > 1
    assert statistics.shares() == {"draft": 100.0, "verify": 800.0, "host": 100.0}
    assert statistics.flush_rate() == 3 / 4
    lines = "\n".join(statistics.lines({"line": counts([(2, 3, 2)])}))
    for part in (
        "2.25 in 4 windows",
        "line: 3.00 in 1",
        "0.75 0.50",
        "verify 800 us",
        "75%",
        "1.12, measured 1.25",
    ):
        assert part in lines
    # Steps with another number of requests are compared with their own kind only.
    for _ in range(2):
        statistics.note(StepTime(1, 3, 100.0, 800.0, 100.0), 3)
    assert statistics.speed_up() == found


@pytest.mark.parametrize("second", [False, True])
def test_counts_of_a_run_add_up(tmp_path, second):
    make_drafter(tmp_path, PICO, second=second)
    runtime = load_runtime(
        PICO,
        RuntimeSettings(
            max_requests=2, max_length=320, state="replay", speculation="drafter", drafter=tmp_path, window=6
        ),
    )
    name = "DFlash2" if second else "DFlash"
    assert runtime.speculation_line() == f"speculation: {name} from {tmp_path}, windows of up to 6 rows"
    asked = [runtime.engine.submit(p, SamplingParams(max_tokens=40)) for p in prompts(runtime, "line", 3)]
    results, emitted = {}, 0
    while runtime.engine.has_work:
        outputs = runtime.engine.step()
        step = runtime.engine.last_step
        assert step.draft_us > 0 or not step.shape.drafted
        results |= {output.id: output.result for output in outputs if output.result is not None}
    found, each = runtime.statistics, [results[name].drafts for name in asked]
    total = DraftCounts()
    for one in each:
        total.merge(one)
    assert total == found.drafts
    assert total.num_guessed == 5 * total.num_windows
    assert total.num_alone == total.num_accepted if not second else total.num_alone <= total.num_guessed
    # Every token but the first of an answer comes with a window or a step of its own.
    emitted = sum(result.num_generated for result in results.values())
    assert emitted <= len(asked) + total.num_accepted + total.num_windows
    assert found.flushes > 0
    assert found.record()["windows"] == total.num_windows
