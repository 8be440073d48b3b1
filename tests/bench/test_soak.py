"""The soak on the tiny model: everything that can happen does, and a wrong answer is seen."""

import pytest

from ocrquant.bench.soak import _judge, _Known, _slope, _Tally
from ocrquant.engine.request import DraftCounts, FinishReason, RequestResult
from tests.bench.running import result_of


def test_everything_happens_and_no_answer_is_wrong(capsys, tiny_model_folder):
    small = ("crops=4", "requests=60", "max_requests=4", "queue_limit=3", "num_pages=1", "max_tokens=40")
    data = result_of(
        capsys,
        "soak",
        *small,
        "cancelled=0.1",
        f"model={tiny_model_folder}",
        "prefix_cache_bytes=0",
        repeats=None,
    )
    counts = data["results"]["counts"]
    assert sum(counts.get(str(reason), 0) for reason in FinishReason) == 60
    assert counts["cancelled"] > 0
    assert counts["refused: queue full"] > 0
    assert data["results"]["wrong"] == []
    assert {goal["what"]: goal["verdict"] for goal in data["goals"]}[
        "requests with a wrong answer"
    ] == "reached"
    assert len(data["goals"]) == 5


def answer(ids, reason, text=""):
    return RequestResult(
        reason, text, ids, (), len(ids) + (reason is FinishReason.END), 1, 0, 0, DraftCounts()
    )


ALONE = _Known(None, 0.0, answer((5, 6, 7), FinishReason.END, "abc"))


@pytest.mark.parametrize(
    ("limit", "given", "is_right"),
    [
        (9, answer((5, 6, 7), FinishReason.END, "abc"), True),
        (4, answer((5, 6, 7), FinishReason.END, "abc"), True),
        (3, answer((5, 6, 7), FinishReason.LENGTH), True),
        (2, answer((5, 6), FinishReason.LENGTH), True),
        (9, answer((5, 6), FinishReason.CANCELLED), True),
        (9, answer((5, 6, 8), FinishReason.END, "abd"), False),
        (9, answer((5, 6), FinishReason.LENGTH), False),
        (2, answer((5,), FinishReason.LENGTH), False),
        (9, answer((6,), FinishReason.CANCELLED), False),
    ],
)
def test_answers_are_judged_by_the_one_alone(limit, given, is_right):
    tally = _Tally()
    _judge("0", ALONE, limit, given, tally)
    assert (tally.wrong == []) is is_right


def test_growth_is_a_slope():
    assert _slope([(0, 5.0), (10, 25.0), (20, 45.0)]) == 2.0
    assert _slope([(0, 5.0)]) == 0.0
