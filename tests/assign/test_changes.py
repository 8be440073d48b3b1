from math import isnan

import pytest

from ocrquant.assign import changes_frame, choose_formats, group_changes, terms_of_size, with_more_bits
from ocrquant.errors import BudgetError
from ocrquant.formats import Precision
from ocrquant.recipe import Budget
from ocrquant.recipe.sections import AssignSection
from tests.assign.builders import sensitivity_of

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4

# Three groups of 64 x 64: 4.5, 8 or 16 bits each, so that one step from NVFP4 to FP8 is 7/6 bits of the mean.
SCORES = {
    "a": {FP8: 0.001, NVFP4: 0.010},
    "b": {FP8: 0.001, NVFP4: 0.030},
    "c": {FP8: 0.001, NVFP4: 0.020},
}


def plan(bits):
    return choose_formats(sensitivity_of(SCORES), Budget(bits_per_weight=bits), {})


def test_more_bits_go_to_the_group_that_loses_most():
    scores, before = sensitivity_of(SCORES), plan(4.5)
    after = with_more_bits(scores, before, 1.2)
    assert after.budget == {"bits_per_weight": 5.7}
    (change,) = group_changes(scores, before, after)
    assert (change.group, change.before, change.after) == ("b", NVFP4, FP8)
    # 64 x 64: 4096 codes and 64 scales of 4 bytes; 2048 bytes, 256 block scales and one scale of 4 bytes.
    assert change.extra_bytes == (4096 + 256) - (2048 + 256 + 4)
    assert change.extra_loss == pytest.approx(0.001 - 0.030)


def test_changes_come_with_the_largest_gain_first_and_back_again():
    scores = sensitivity_of(SCORES)
    changes = group_changes(scores, plan(4.5), plan(8.0))
    assert [change.group for change in changes] == ["b", "c", "a"]
    back = group_changes(scores, plan(8.0), plan(4.5))
    assert [change.group for change in back] == ["a", "c", "b"]
    assert all(change.extra_loss > 0 > change.extra_bytes for change in back)


def test_the_budget_is_what_grows_not_what_was_reached_of_it():
    before = plan(5.6)
    assert before.bits_per_weight == 4.5
    assert with_more_bits(sensitivity_of(SCORES), before, 0.1).bits_per_weight == pytest.approx(17 / 3)
    by_bytes = before.model_copy(update={"budget": {"weight_bytes": 1e6}})
    assert with_more_bits(sensitivity_of(SCORES), by_bytes, 0.5).budget == {"bits_per_weight": 5.0}


def test_a_format_that_was_closed_to_a_group_has_no_score():
    open_to = {"a": [BF16, FP8]}
    scores = sensitivity_of(SCORES, open_to=open_to)
    before = choose_formats(scores, Budget(bits_per_weight=8), {})
    edited = before.model_copy(update={"groups": before.groups | {"a": NVFP4, "b": NVFP4}})
    changes = group_changes(scores, edited, before)
    assert [change.group for change in changes] == ["b", "a"]
    assert isnan(changes[1].extra_loss)


def test_limits_of_the_recipe_hold_for_the_other_plan_too():
    section = AssignSection(
        budget=Budget(step_us=50.0),
        target={"table": "not/here.json"},
        counted_cache={"context": 100, "requests": 2},
        force={"nvfp4": ["b"]},
    )
    scores = sensitivity_of(SCORES)
    after = with_more_bits(scores, plan(4.5), 1.2, terms=terms_of_size(section))
    assert {name for name, precision in after.groups.items() if precision is FP8} == {"c"}


def test_frame_has_a_row_a_change_and_columns_without_any():
    scores = sensitivity_of(SCORES)
    frame = changes_frame(group_changes(scores, plan(4.5), plan(8.0)))
    assert list(frame.group) == ["b", "c", "a"]
    assert list(frame.after.unique()) == ["fp8"]
    empty = changes_frame([])
    assert list(empty.columns) == list(frame.columns)
    assert len(empty) == 0


def test_fewer_bits_than_there_are_are_refused():
    with pytest.raises(BudgetError):
        with_more_bits(sensitivity_of(SCORES), plan(4.5), -0.25)
