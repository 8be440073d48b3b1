"""Limits of kinds: HiGHS against trying every plan, and never over a limit in whole numbers."""

import random
from itertools import product

import pytest

from ocrquant.assign.kinds import KindRow
from ocrquant.assign.knapsack import Knapsack
from ocrquant.assign.limited import LimitedKnapsack


def random_groups(rng, num_groups, *, num_choices=3, largest=10**6):
    """Choices whose objective falls as the resource grows, mostly, as (objective, resource)."""
    groups = []
    for _ in range(num_groups):
        resources = sorted(rng.randrange(1, largest) for _ in range(num_choices))
        objectives = sorted((rng.randrange(0, 2**40) for _ in range(num_choices)), reverse=True)
        group = list(zip(objectives, resources, strict=True))
        rng.shuffle(group)
        groups.append(group)
    return groups


def random_rows(rng, groups, num_rows):
    """Limits over some of the groups that some plans keep and some do not; one number may be negative."""
    rows = []
    for number in range(num_rows):
        mine = {i for i in range(len(groups)) if rng.random() < 0.6}
        sign = rng.choice([1, 1, -1])
        coefficients = tuple(
            tuple(sign * rng.randrange(0, 1000) if i in mine else 0 for _ in group)
            for i, group in enumerate(groups)
        )
        sums = [rng.choice(choices) for choices in coefficients]
        rows.append(KindRow(f"row {number}", coefficients, sum(sums) + rng.randrange(0, 50)))
    return rows


def keeps(row, plan):
    return sum(row.coefficients[g][c] for g, c in enumerate(plan)) <= row.at_most


def brute_force(groups, rows, limit):
    """(objective, resource) of the best plan, by trying every one."""
    found = []
    for plan in product(*(range(len(group)) for group in groups)):
        if all(keeps(row, plan) for row in rows):
            objective = sum(groups[g][c][0] for g, c in enumerate(plan))
            resource = sum(groups[g][c][1] for g, c in enumerate(plan))
            if resource <= limit:
                found.append((objective, resource))
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(60))
def test_equals_brute_force(seed):
    rng = random.Random(seed)
    # Resources up to 2^40 are beyond what a tolerance of 10^-6 can tell apart.
    groups = random_groups(rng, rng.randrange(1, 6), largest=rng.choice([20, 10**6, 2**40]))
    rows = random_rows(rng, groups, rng.randrange(1, 3))
    limited = LimitedKnapsack(groups, rows)
    most = sum(max(r for _, r in group) for group in groups)
    possible = brute_force(groups, rows, most)
    assert limited.is_possible == (possible is not None)
    for limit in (rng.randrange(0, most + 1), most):
        selection, best = limited.best(limit), brute_force(groups, rows, limit)
        if best is None:
            assert selection is None
            continue
        assert (selection.objective, selection.resource) == best
        assert all(keeps(row, selection.chosen) for row in rows)
        assert selection.objective == sum(groups[g][c][0] for g, c in enumerate(selection.chosen))


def test_without_rows_it_agrees_with_the_exact_search():
    rng = random.Random(7)
    groups = random_groups(rng, 40)
    exact, limited = Knapsack(groups), LimitedKnapsack(groups, [])
    assert (limited.least_resource, limited.most_resource) == (exact.least_resource, exact.most_resource)
    for limit in range(exact.least_resource, exact.most_resource, (exact.most_resource // 7)):
        assert limited.best(limit).objective == exact.best(limit).objective


def test_a_plan_one_unit_over_the_limit_is_cut_off():
    # 2^50 and 2^50 + 1 are the same within every tolerance; the second is over the limit by one.
    groups = [[(0, 2**50 + 1), (5, 2**50), (9, 1)]]
    assert LimitedKnapsack(groups, []).best(2**50).chosen == (1,)
    assert LimitedKnapsack(groups, []).best(2**50 + 1).chosen == (0,)


def test_same_plan_each_time():
    rng = random.Random(3)
    groups = [[(1, 1), (0, 2), (0, 2)] for _ in range(12)]
    rows = random_rows(rng, groups, 1)
    plans = {LimitedKnapsack(groups, rows).best(18).chosen for _ in range(3)}
    assert len(plans) == 1
