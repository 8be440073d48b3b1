"""How many pages are scored."""

import pytest

from ocrquant.formats import Precision
from ocrquant.sensitivity.growth import largest_change, page_counts
from tests.assign.builders import sensitivity_of

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4


@pytest.mark.parametrize(
    ("num_pages", "counts"), [(5, [5]), (8, [8]), (9, [8, 9]), (48, [8, 16, 32, 48]), (64, [8, 16, 32, 64])]
)
def test_pages_double_up_to_all_of_them(num_pages, counts):
    assert list(page_counts(num_pages)) == counts


def test_change_is_what_the_older_plans_lose_by_the_present_scores():
    scores = sensitivity_of({"a": {FP8: 1.0, NVFP4: 4.0}, "b": {FP8: 2.0, NVFP4: 6.0}})
    before = {"low": {"a": NVFP4, "b": NVFP4}, "high": {"a": BF16, "b": FP8}}
    after = {"low": {"a": NVFP4, "b": NVFP4}, "high": {"a": FP8, "b": BF16}}
    assert largest_change(scores, before, after) == ("high", 1.0)
    assert largest_change(scores, after, after)[1] == 0.0
    assert largest_change(scores, {}, {}) == ("", 0.0)
