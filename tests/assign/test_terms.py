"""Limits of kinds, settled groups and a cache that counts, through the whole choice of formats."""

import random

import pytest

from ocrquant.assign import Terms, build_problem, choose_formats, narrow, pareto
from ocrquant.cost import TARGETS, Load, StepCost, Target
from ocrquant.errors import BudgetError, PatternError
from ocrquant.formats import Precision
from ocrquant.recipe.sections import Budget
from tests.assign.builders import random_scores, sensitivity_of, with_cache

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
SCORES = {
    "layers.0.down": {FP8: 1e-4, NVFP4: 4e-3},
    "layers.1.down": {FP8: 1e-4, NVFP4: 1e-3},
    "layers.0.up": {FP8: 1e-4, NVFP4: 2e-3},
    "layers.1.up": {FP8: 1e-4, NVFP4: 3e-3},
}


def formats(assignment):
    return list(assignment.groups.values())


def test_share_of_a_kind():
    # 4.5 bits are uniform nvfp4; half of the weights of `down` may have it, so that the budget must rise.
    terms = Terms(limits={"down": {NVFP4: 0.5}})
    sensitivity = sensitivity_of(SCORES)
    plan = choose_formats(sensitivity, Budget(bits_per_weight=5.4), {}, terms=terms)
    assert plan.groups == {
        "layers.0.down": FP8,  # loses most in nvfp4
        "layers.1.down": NVFP4,
        "layers.0.up": NVFP4,
        "layers.1.up": NVFP4,
    }
    with pytest.raises(BudgetError, match=r"expected at least 5\.375"):
        choose_formats(sensitivity, Budget(bits_per_weight=5.3), {}, terms=terms)


def test_fewest_bits_of_a_kind():
    terms = Terms(min_bits={"up": 12})
    plan = choose_formats(sensitivity_of(SCORES), Budget(bits_per_weight=8.5), {}, terms=terms)
    # (16 + 8) / 2 in one kind leaves 2 * 8.5 * 2 - 24 = 10 bits for two groups of the other.
    assert sorted(formats(plan)[:2]) == [NVFP4, NVFP4]
    assert sorted(formats(plan)[2:]) == [BF16, FP8]


def test_limits_that_no_plan_keeps_are_named():
    terms = Terms(limits={"down": {NVFP4: 0.0, FP8: 0.0, BF16: 0.5}})
    with pytest.raises(
        BudgetError, match=r"assign\.limits and assign\.min_bits.*assign\.limits\.down\.nvfp4"
    ):
        choose_formats(sensitivity_of(SCORES), Budget(bits_per_weight=16), {}, terms=terms)


def test_unknown_kind_is_refused():
    with pytest.raises(PatternError, match=r"assign\.limits\.downs: expected one of down, up"):
        build_problem(sensitivity_of(SCORES), terms=Terms(limits={"downs": {NVFP4: 0.5}}))


def test_settled_groups():
    terms = Terms(force={FP8: ["layers.1.*"]}, forbid={NVFP4: ["re:layers\\.0\\.up"]})
    plan = choose_formats(sensitivity_of(SCORES), Budget(bits_per_weight=8), {}, terms=terms)
    assert formats(plan) == [FP8, FP8, FP8, FP8]
    narrowed = narrow(sensitivity_of(SCORES), terms, "bits_per_weight")
    assert narrowed.groups[1].precisions == [FP8]
    assert narrowed.groups[1].reason == "assign.force.fp8 says 'layers.1.*'"
    assert narrowed.groups[2].precisions == [BF16, FP8]
    assert {(row.group, row.precision) for row in narrowed.rows} == {
        ("layers.0.down", FP8),
        ("layers.0.down", NVFP4),
        ("layers.0.up", FP8),
        ("layers.1.down", FP8),
        ("layers.1.up", FP8),
    }


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (Terms(force={FP8: ["layers.9.*"]}), r"assign\.force\.fp8: 'layers\.9\.\*'.*matches nothing"),
        (Terms(force={FP8: ["layers.0.up"], BF16: ["layers.0.*"]}), "layers.0.up|layers.0.down"),
        (Terms(forbid={FP8: ["*"], NVFP4: ["*"], BF16: ["*"]}), "expected a format that is left"),
    ],
)
def test_patterns_that_cannot_be_are_refused(terms, message):
    with pytest.raises(PatternError, match=message):
        narrow(sensitivity_of(SCORES), terms, "bits_per_weight")


def test_cache_is_fp8_only_where_it_counts_and_pays():
    sensitivity = with_cache(sensitivity_of(SCORES), 5e-4)
    weights = 4 * 64 * 64
    cache = 1024 * 100 * 2
    budget = Budget(weight_bytes=2 * weights + cache)
    free = choose_formats(sensitivity, budget, {}, terms=Terms(kv_cache="auto"))
    assert (free.kv_cache, free.kv_bytes) == ("bf16", None)
    assert formats(free) == [BF16] * 4
    # Half of the cache's bytes cost 5e-4; taking as much from the weights would cost more.
    tight = Budget(weight_bytes=2 * weights + cache // 2)
    counted = choose_formats(sensitivity, tight, {}, terms=Terms(kv_cache="auto", counted_tokens=100))
    assert (counted.kv_cache, counted.kv_bytes) == ("fp8", cache // 2)
    assert counted.weight_bytes == 2 * weights
    assert counted.predicted_loss == pytest.approx(5e-4)
    settled = Terms(kv_cache="bf16", counted_tokens=100)
    assert choose_formats(sensitivity, budget, {}, terms=settled).kv_bytes == cache


def test_an_unreachable_budget_counts_the_groups_of_the_model():
    sensitivity = with_cache(sensitivity_of(SCORES), 5e-4)
    terms = Terms(kv_cache="auto", counted_tokens=100)
    with pytest.raises(BudgetError, match=r"over 4 groups with"):
        choose_formats(sensitivity, Budget(weight_bytes=1), {}, terms=terms)


def test_wish_for_fp8_needs_no_score():
    plan = choose_formats(sensitivity_of(SCORES), Budget(bits_per_weight=8), {}, terms=Terms(kv_cache="fp8"))
    assert (plan.kv_cache, plan.kv_bytes) == ("fp8", None)


FLAT = Target(
    name="flat",
    bytes_per_s=1e9,
    flop_per_s={BF16: 1e12, FP8: 1e12, NVFP4: 1e12},
    launch_us=0.0,
    replay_us=0.0,
    stated_by="nobody",
)


def test_step_budget_buys_time_with_bytes():
    sensitivity = sensitivity_of(SCORES)
    step = StepCost(FLAT, Load())
    fp8_us = 4 * (64 * 64 + 4 * 64) / 1e3  # bytes and scales at 1 byte a nanosecond
    plan = choose_formats(sensitivity, Budget(step_us=fp8_us), {}, terms=Terms(step=step))
    assert formats(plan) == [FP8] * 4
    assert plan.step.us == pytest.approx(fp8_us, abs=0.01)
    assert plan.step.bf16_us == pytest.approx(4 * 64 * 64 * 2 / 1e3)
    assert "roofline of flat (nobody)" in plan.step.load
    with pytest.raises(BudgetError, match=r"assign\.budget\.step_us: expected at least 9\.2"):
        choose_formats(sensitivity, Budget(step_us=9), {}, terms=Terms(step=step))


class SlowFp8:
    """A machine where FP8 takes longer than bf16."""

    source = "measured nowhere"

    def product_us(self, out_features, in_features, precision, rows):
        return {BF16: 10.0, FP8: 11.0, NVFP4: 6.0}[precision]

    def read_us(self, num_bytes):
        return num_bytes / 1000

    def note(self, precision):
        return ""


def test_slower_format_is_never_chosen_for_speed():
    # FP8 was measured below bf16, by noise: a search over sums alone would take it gladly.
    scores = {name: {FP8: -1e-5, NVFP4: 1e-3} for name in SCORES}
    terms = Terms(step=StepCost(SlowFp8(), Load(batch=2, window=4)))
    for limit in (40, 44, 36, 24):
        plan = choose_formats(sensitivity_of(scores), Budget(step_us=limit), {}, terms=terms)
        assert FP8 not in formats(plan)
        assert plan.step.us <= limit
    assert plan.step.notes == [
        "4 choices are slower there than a wider format, and never taken for speed "
        "(layers.0.down: fp8 takes 11 us there, bf16 10)"
    ]
    assert plan.step.load == "2 requests, 4 rows each, context of 0 tokens, measured nowhere"
    # Under a budget of bits it may be chosen: it is smaller.
    assert FP8 in formats(choose_formats(sensitivity_of(scores), Budget(bits_per_weight=8), {}, terms=terms))
    # A group that is settled keeps its format.
    forced = Terms(step=terms.step, force={FP8: ["layers.0.up"]})
    assert (
        choose_formats(sensitivity_of(scores), Budget(step_us=44), {}, terms=forced).groups["layers.0.up"]
        is FP8
    )


def test_reading_the_cache_is_part_of_a_step():
    sensitivity = with_cache(sensitivity_of(SCORES), 1e-6)
    terms = Terms(kv_cache="auto", step=StepCost(SlowFp8(), Load(batch=2, context=10)))
    # 2 * 10 tokens of 1024 elements: 40.96 us in bf16, half in fp8; the linears take 40 in bf16.
    plan = choose_formats(sensitivity, Budget(step_us=61), {}, terms=terms)
    assert (plan.kv_cache, plan.step.kv_us, plan.step.us) == ("fp8", 20.48, 60.48)
    assert plan.step.bf16_us == 80.96
    assert formats(plan) == [BF16] * 4
    uncounted = choose_formats(sensitivity_of(SCORES), Budget(step_us=61), {}, terms=terms)
    assert "keys and values are not counted: sensitivity.json has no score of their cache" in (
        uncounted.step.notes
    )


def test_a_format_that_is_decoded_is_noted():
    step = StepCost(TARGETS["h200"], Load(batch=8, window=16))
    plan = choose_formats(sensitivity_of(SCORES), Budget(bits_per_weight=6), {}, terms=Terms(step=step))
    assert any("h200 has no nvfp4 arithmetic" in note for note in plan.step.notes)


def test_front_keeps_the_limits():
    rng = random.Random(2)
    scores = random_scores(rng, 12)
    sensitivity = sensitivity_of({f"{name}.{'ab'[i % 2]}": s for i, (name, s) in enumerate(scores.items())})
    terms = Terms(limits={"a": {NVFP4: 0.5}})
    plan = choose_formats(sensitivity, Budget(bits_per_weight=7), {}, terms=terms)
    front = pareto(sensitivity, plan, {}, terms=terms).front
    # Half of one kind in nvfp4, everything else too: (3 * 8 + 9 * 4.5) / 12.
    assert min(point.bits_per_weight for point in front) == pytest.approx(5.375)
    assert all(point.num_groups.get(NVFP4, 0) <= 9 for point in front)
    assert len(front) > 10
