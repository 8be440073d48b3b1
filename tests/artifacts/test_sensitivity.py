import pytest

from ocrquant.artifacts import GroupRecord, Sensitivity, SensitivityRow
from ocrquant.formats import Precision


def group(**changes):
    values = {
        "name": "0.qkv",
        "kind": "qkv",
        "block": 0,
        "linears": ["0.q", "0.k"],
        "shapes": [(6, 10), (4, 10)],
        "num_weights": 100,
        "precisions": ["bf16", "fp8", "nvfp4"],
    }
    return GroupRecord(**values | changes)


def row(**changes):
    values = {
        "group": "0.qkv",
        "precision": "fp8",
        "score": "kl",
        "mean": 1e-4,
        "standard_error": 1e-5,
        "num_pages": 8,
        "num_tokens": 90,
        "bits_per_weight": 8.0,
        "weight_bytes": 104,
    }
    return SensitivityRow(**values | changes)


def sensitivity(groups=None, rows=None):
    return Sensitivity(inputs={}, groups=groups or [group()], rows=rows or [row()])


def test_round_trip(tmp_path):
    found = sensitivity(rows=[row(), row(precision="nvfp4", mean=-1e-9), row(score="gradient")])
    found.save(tmp_path)
    assert Sensitivity.load(tmp_path) == found
    assert Sensitivity.load(tmp_path).rows[0].precision is Precision.FP8


def test_frame_has_rows_with_the_size_of_their_group():
    frame = sensitivity(rows=[row(), row(precision="nvfp4")]).to_frame()
    assert frame["precision"].tolist() == ["fp8", "nvfp4"]
    assert frame["num_weights"].tolist() == [100, 100]
    assert frame["num_linears"].tolist() == [2, 2]
    assert {"mean", "standard_error", "num_tokens", "weight_bytes"} <= set(frame.columns)


def test_rows_say_whether_they_are_measured():
    assert row().is_measured
    assert not row(score="gradient").is_measured
    assert not row(score="screened", is_measured=False).is_measured
    with pytest.raises(ValueError, match="is_measured"):
        row(score="screened")
    with pytest.raises(ValueError, match="a gradient score of '0.qkv' with is_measured True"):
        row(score="gradient", is_measured=True)


def test_plan_follows_screened_scores_then_measured_ones():
    rows = [row(score="gradient"), row(), row(score="screened", is_measured=True)]
    assert [sensitivity(rows=rows[:count]).plan_score for count in (1, 2, 3)] == [
        "gradient",
        "kl",
        "screened",
    ]


def test_shapes_belong_to_the_linears():
    with pytest.raises(ValueError, match="2 linears, 1 shapes"):
        group(shapes=[(10, 10)])
    with pytest.raises(ValueError, match="do not hold 100 weights"):
        group(shapes=[(6, 10), (4, 11)])


def test_frame_of_no_rows_has_the_columns():
    empty = Sensitivity(inputs={}, groups=[], rows=[]).to_frame()
    assert len(empty) == 0
    assert "mean" in empty.columns


@pytest.mark.parametrize(
    ("groups", "rows", "message"),
    [
        ([group(), group()], None, "a group is listed twice"),
        (None, [row(), row(mean=2)], "two kl rows for fp8"),
        (None, [row(group="1.qkv")], "'1.qkv' cannot be fp8"),
        ([group(precisions=["bf16"])], None, "'0.qkv' cannot be fp8"),
    ],
)
def test_rows_fit_the_groups(groups, rows, message):
    with pytest.raises(ValueError, match=message):
        sensitivity(groups, rows)
