"""Sentences on how a plan was chosen."""

from ocrquant.artifacts import Assignment, MeasuredKl, RepairRecord, StepRecord, Swap
from ocrquant.evaluate.plan_notes import plan_notes
from ocrquant.formats import Precision


def assignment(**values):
    return Assignment(
        inputs={},
        budget={"bits_per_weight": 6},
        score="kl",
        predicted_loss=1e-3,
        bits_per_weight=6,
        weight_bytes=100,
        groups={"a": Precision.FP8},
        **values,
    )


def test_nothing_was_asked_for():
    assert plan_notes(assignment()) == []


def test_time_and_what_is_slower():
    step = StepRecord(us=12.5, kv_us=2.5, bf16_us=20, load="1 requests on x", notes=["fp8 is slow there"])
    assert plan_notes(assignment(step=step)) == [
        "What the plan decides of a decode step takes 12.5 µs, 2.5 of it for keys and values, 20 µs in bf16: "
        "1 requests on x.",
        "Fp8 is slow there.",
    ]


def repair(is_kept):
    swap = Swap(
        groups={"a": (Precision.FP8, Precision.BF16)},
        predicted=1e-4,
        measured=-1e-3,
        standard_error=1e-5,
        is_kept=is_kept,
    )
    return RepairRecord(
        num_measurements=3,
        num_pages=8,
        num_tokens=100,
        before=MeasuredKl(predicted=1e-3, measured=3e-3, standard_error=1e-4),
        after=MeasuredKl(predicted=1.1e-3, measured=2e-3, standard_error=1e-4),
        swaps=[swap, swap.model_copy(update={"is_kept": False})],
    )


def test_swaps():
    first = (
        "The plan of least sum was measured as a whole on 8 scored pages: 0.003 ± 0.0001 nats a token, "
        "predicted 0.001. "
    )
    assert plan_notes(assignment(repair=repair(True))) == [
        first + "1 of 2 swaps lowered it to 0.002 ± 0.0001 on the same pages."
    ]
    assert plan_notes(assignment(repair=repair(False))) == [
        first + "None of 2 swaps lowered it by more than its noise."
    ]
