import pytest

from ocrquant.evaluate.sizes import arm_size
from ocrquant.formats import Precision
from tests.evaluate.making import assignment, sensitivity, uniform


def test_bf16_is_sixteen_bits_and_two_bytes_a_weight():
    scores = sensitivity()
    size = arm_size({}, scores)
    assert size.bits_per_weight == 16
    assert size.weight_bytes == 2 * sum(group.num_weights for group in scores.groups)
    assert size.num_groups == {Precision.BF16: len(scores.groups)}


def test_a_closed_group_counts_at_what_it_keeps():
    scores = sensitivity()
    size = arm_size(uniform(Precision.NVFP4), scores)
    total = sum(group.num_weights for group in scores.groups)
    kept = next(group.num_weights for group in scores.groups if group.name == "layers.0.gdn.out")
    assert size.num_groups == {Precision.BF16: 1, Precision.NVFP4: len(scores.groups) - 1}
    assert size.bits_per_weight == pytest.approx((16 * kept + 4.5 * (total - kept)) / total)


def test_a_plan_has_the_size_that_it_was_chosen_for():
    scores = sensitivity()
    plan = assignment(scores)
    size = arm_size(plan.groups, scores)
    assert size.bits_per_weight == pytest.approx(plan.bits_per_weight)
    assert size.weight_bytes == plan.weight_bytes
