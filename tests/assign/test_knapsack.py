import random

import pytest

from ocrquant.assign import knapsack as module
from ocrquant.assign.knapsack import Knapsack
from tests.assign import oracles


def small_problem(seed):
    """Up to 7 groups with up to 4 choices; small numbers, so that ties and dominated choices abound."""
    rng = random.Random(seed)
    top = rng.choice([3, 10, 1000])
    return [
        [(rng.randrange(top), rng.randrange(top)) for _ in range(rng.randrange(1, 5))]
        for _ in range(rng.randrange(1, 8))
    ]


def large_problem(seed, num_groups=400, correlation=0.0):
    rng = random.Random(seed)
    groups = []
    for _ in range(num_groups):
        weights = rng.randrange(8, 200) * 64 * rng.randrange(8, 200) * 64
        sizes = (weights * 9 // 16 + 4, weights + 4 * rng.randrange(64, 9000), weights * 2)
        if correlation:
            losses = [int((sizes[2] - size) * (1 + correlation * rng.gauss(0, 1))) for size in sizes[:2]]
        else:
            worst = rng.lognormvariate(0, 1.5) * 2**40
            losses = [int(worst), int(worst * rng.lognormvariate(-3, 0.5))]
        groups.append(list(zip([*losses, 0], sizes, strict=True)))
    return groups


def sums(groups, chosen):
    return (
        sum(group[i][0] for group, i in zip(groups, chosen, strict=True)),
        sum(group[i][1] for group, i in zip(groups, chosen, strict=True)),
    )


@pytest.mark.parametrize("block", range(20))
def test_equals_brute_force(block):
    for seed in range(block * 25, block * 25 + 25):
        groups = small_problem(seed)
        solver = Knapsack(groups)
        assert solver.least_resource == min(r for _, r in oracles.all_undominated(groups))
        span = solver.most_resource - solver.least_resource
        rng = random.Random(seed)
        for limit in [solver.least_resource + rng.randrange(span + 2) for _ in range(4)]:
            found = solver.best(limit)
            assert (found.objective, found.resource) == oracles.brute_force(groups, limit), (seed, limit)
            assert sums(groups, found.chosen) == (found.objective, found.resource)
            assert found.gap == 0


@pytest.mark.parametrize("seed", range(40))
def test_equals_brute_force_at_every_limit(seed):
    groups = small_problem(1000 + seed)
    solver = Knapsack(groups)
    front = oracles.all_undominated(groups)
    assert solver.most_resource == front[-1][1]
    assert solver.least_objective == front[-1][0]
    for objective, resource in front:
        found = solver.best(resource)
        assert (found.objective, found.resource) == (objective, resource)


def test_limit_below_the_least_has_no_plan():
    solver = Knapsack([[(5, 2), (0, 9)], [(1, 3)]])
    assert solver.best(4) is None
    assert solver.best(5).chosen == (0, 0)


@pytest.mark.parametrize("correlation", [0.0, 0.02])
@pytest.mark.parametrize("seed", range(6))
def test_large_is_never_over_the_limit_nor_worse_than_uniform(seed, correlation):
    groups = large_problem(seed, correlation=correlation, num_groups=150)
    solver = Knapsack(groups)
    for uniform in range(3):
        objective, resource = sums(groups, [uniform] * len(groups))
        for limit in (resource, resource + 12345):
            found = solver.best(limit)
            assert found.gap == 0
            assert sums(groups, found.chosen) == (found.objective, found.resource)
            assert found.resource <= limit
            assert found.objective <= objective


@pytest.mark.parametrize("seed", range(3))
def test_large_is_as_good_as_highs(seed):
    groups = large_problem(seed, num_groups=80)
    solver = Knapsack(groups)
    limit = solver.least_resource + (solver.most_resource - solver.least_resource) // (2 + seed)
    found = solver.best(limit)
    witness = oracles.highs_selection(groups, limit)
    assert witness is not None
    objective, _ = sums(groups, witness)
    assert found.objective <= objective
    assert objective - found.objective <= 1e-4 * objective


def test_order_of_groups_decides_nothing_but_ties():
    groups = large_problem(7, num_groups=100)
    limit = Knapsack(groups).least_resource * 3 // 2
    order = list(range(len(groups)))
    random.Random(0).shuffle(order)
    found = Knapsack(groups).best(limit)
    shuffled = Knapsack([groups[i] for i in order]).best(limit)
    assert [shuffled.chosen[order.index(i)] for i in range(len(groups))] == list(found.chosen)


def test_equal_choices_give_the_first_one():
    assert Knapsack([[(1, 1), (1, 1), (2, 1), (1, 2)]]).best(9).chosen == (0,)


def test_search_that_is_stopped_says_how_far_off_it_may_be():
    # Objectives in proportion to resources: the bound tells no two plans apart.
    rng = random.Random(0)
    groups = [[(size, 0), (0, size)] for size in (rng.randrange(10**6, 10**7) for _ in range(30))]
    solver = Knapsack(groups)
    limit = solver.most_resource // 2
    exact, stopped = solver.best(limit), solver.best(limit, max_states=50)
    assert exact.gap <= stopped.gap
    assert stopped.gap > 0
    assert stopped.resource <= limit
    assert exact.objective >= stopped.objective - stopped.gap


def test_planted_fault_is_found(monkeypatch):
    """Brute force sees it when dominance throws away the wrong state."""

    def worst_kept(resource, objective):
        return module.np.lexsort((-objective, resource))[:1]

    monkeypatch.setattr(module, "_front", worst_kept)
    with pytest.raises(AssertionError):
        test_equals_brute_force(0)
