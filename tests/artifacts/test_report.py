import pytest

from ocrquant.artifacts import (
    ArmReport,
    ChainLink,
    FileRecord,
    GateCheck,
    Interval,
    PageOutput,
    Report,
    RuntimeRecord,
    TextMetrics,
)

RAN = RuntimeRecord(device="cpu", dtype="bf16", kernels="native", linears=[], kv_cache="bf16")


def metrics(*, cer=0.02, against_bf16=True):
    interval = Interval(estimate=0.001, low=-0.001, high=0.003) if against_bf16 else None
    return TextMetrics(
        num_pages=8,
        num_documents=3,
        num_characters=300,
        cer=cer,
        wer=0.1,
        exact_line_rate=0.5,
        digit_error_rate=None,
        num_repetition_loops=0,
        num_unfinished=0,
        num_empty=0,
        num_nonfinite=0,
        mean_kl=0.01,
        cer_increase=interval,
        wer_increase=interval,
        kl_interval=interval,
        loop_increase=interval,
        unfinished_increase=interval,
        empty_increase=interval,
    )


def arm(name):
    found = metrics(against_bf16=name != "bf16")
    return ArmReport(
        name=name,
        num_groups={"fp8": 3},
        bits_per_weight=6.4,
        weight_bytes=10,
        checkpoint_bytes=None,
        overall=found,
        by_kind={"line": found, "block": metrics(cer=0.04)},
    )


def report(**changes):
    page = PageOutput(
        page="a-1",
        kind="line",
        document="a",
        truth="x",
        image="report_pages/1.png",
        outputs={"bf16": "x", "plan": "y"},
        cer={"bf16": 0, "plan": 1},
    )
    values = {
        "model": "pico",
        "recipe_sha256": "0" * 64,
        "truth_sources": {"ground_truth": 8},
        "num_bootstrap_samples": 100,
        "seed": 0,
        "comparisons": [],
        "equivalence": None,
        "notes": [],
        "images": {"report_pages/1.png": FileRecord(sha256="2" * 64, num_bytes=9)},
        "runtimes": {"bf16": RAN, "plan": RAN},
        "arms": [arm("bf16"), arm("plan")],
        "worst_pages": [page],
        "gate": [check(0.1, 0.1)],
        "chain": [ChainLink(artifact="pages", sha256="0" * 64, inputs={"source": "1" * 64})],
    }
    return Report(inputs={}, **values | changes)


def test_round_trip(tmp_path):
    report().save(tmp_path)
    assert Report.load(tmp_path) == report()


def check(limit, measured, interval=None):
    return GateCheck(
        threshold="max_cer_increase",
        kind="line",
        limit=limit,
        measured=measured,
        interval=interval,
        num_pages=8,
        num_documents=3,
    )


@pytest.mark.parametrize(
    ("gate", "is_passed"),
    [
        ([], True),
        ([check(1, 1)], True),
        ([check(1, 1.001)], False),
        ([check(1, 0), check(0, 1)], False),
        ([check(1, None)], False),
    ],
)
def test_gate_passes_when_every_threshold_holds(gate, is_passed):
    assert report(gate=gate).is_passed is is_passed


@pytest.mark.parametrize(
    ("low", "high", "includes_zero"),
    [(-1, 1, True), (0, 1, True), (-1, 0, True), (0.1, 1, False), (-1, -0.1, False)],
)
def test_interval(low, high, includes_zero):
    assert Interval(estimate=0.5, low=low, high=high).includes_zero is includes_zero
    if low != high:
        with pytest.raises(ValueError, match="low must not exceed high"):
            Interval(estimate=0.5, low=high, high=low)


def test_an_interval_of_one_document_says_nothing():
    unknown = Interval(estimate=0.5, low=None, high=None)
    assert unknown.includes_zero
    assert unknown.reaches(0.1)
    with pytest.raises(ValueError, match="known together"):
        Interval(estimate=0.5, low=0, high=None)


@pytest.mark.parametrize(
    ("low", "high", "is_conclusive"),
    [(0.0, 0.1, True), (0.0, 0.11, False), (0.1, 0.2, False), (0.11, 0.2, True), (None, None, False)],
)
def test_a_check_is_conclusive_where_the_interval_lies_on_one_side(low, high, is_conclusive):
    interval = Interval(estimate=0.1, low=low, high=high)
    assert check(0.1, 0.1, interval).is_conclusive is is_conclusive


@pytest.mark.parametrize(
    ("low", "high", "is_conclusive"),
    [(4.0, 5.0, True), (3.9, 5.0, False), (3.0, 4.0, False), (3.0, 3.9, True), (None, None, False)],
)
def test_a_minimum_is_conclusive_on_the_other_side(low, high, is_conclusive):
    interval = Interval(estimate=4.0, low=low, high=high)
    assert check(4.0, 4.0, interval).model_copy(update={"is_minimum": True}).is_conclusive is is_conclusive


@pytest.mark.parametrize(("measured", "is_passed"), [(4.0, True), (4.1, True), (3.9, False), (None, False)])
def test_a_minimum_passes_from_the_limit_up(measured, is_passed):
    assert check(4.0, measured).model_copy(update={"is_minimum": True}).is_passed is is_passed


def test_a_count_and_nothing_measured_are_conclusive():
    assert check(0, 1).is_conclusive
    assert check(0, None).is_conclusive


def test_worst_pages_need_their_images():
    with pytest.raises(ValueError, match="no image 'report_pages/1.png'"):
        report(images={})


def test_arm_by_name():
    assert report().arm("plan").name == "plan"
    assert report().arm("fp8") is None


@pytest.mark.parametrize("names", [["plan", "bf16"], ["bf16", "plan", "plan"], ["fp8"]])
def test_arms_are_distinct_and_begin_with_bf16(names):
    with pytest.raises(ValueError, match="distinct and begin with bf16"):
        report(arms=[arm(name) for name in names])


def test_frame_has_a_row_for_each_arm_and_kind():
    frame = report().to_frame()
    assert list(zip(frame["arm"], frame["kind"], strict=True)) == [
        ("bf16", "all"),
        ("bf16", "block"),
        ("bf16", "line"),
        ("plan", "all"),
        ("plan", "block"),
        ("plan", "line"),
    ]
    plan = frame[(frame["arm"] == "plan") & (frame["kind"] == "all")].iloc[0]
    assert (plan["cer_increase_low"], plan["cer_increase"], plan["cer_increase_high"]) == (
        -0.001,
        0.001,
        0.003,
    )
    assert frame["cer"].tolist() == [0.02, 0.04, 0.02] * 2
