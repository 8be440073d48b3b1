import random
import time
from itertools import pairwise

import pytest

from ocrquant.assign import build_problem, pareto_front, solve
from ocrquant.formats import Precision
from tests.assign.builders import random_scores, random_sizes, sensitivity_of
from tests.assign.oracles import all_undominated


def random_problem(seed, num_groups):
    rng = random.Random(seed)
    scores = random_scores(rng, num_groups)
    return build_problem(sensitivity_of(scores, sizes=random_sizes(rng, scores)))


@pytest.mark.parametrize("seed", range(10))
def test_every_step_gives_the_whole_front(seed):
    problem = random_problem(seed, 6)
    items = [[(c.loss, c.weight_bytes) for c in group.choices] for group in problem.groups]
    found = [(plan.totals.loss, plan.totals.weight_bytes) for plan in pareto_front(problem, num_steps=10**9)]
    assert found == all_undominated(items)


def test_coarse_front_is_part_of_the_whole_one_and_misses_no_more_than_a_step():
    problem = random_problem(0, 20)
    whole = [plan.totals.weight_bytes for plan in pareto_front(problem, num_steps=10**9)]
    coarse = [plan.totals.weight_bytes for plan in pareto_front(problem, num_steps=25)]
    assert set(coarse) < set(whole)
    assert (coarse[0], coarse[-1]) == (whole[0], whole[-1])
    step = (whole[-1] - whole[0]) // 25
    assert all(any(0 <= size - left_out <= step for size in coarse) for left_out in whole)


def test_points_are_what_the_solver_gives_for_their_size():
    problem = random_problem(1, 40)
    front = pareto_front(problem)
    assert len(front) > 50
    for plan in front[::7]:
        assert solve(problem, "weight_bytes", plan.totals.weight_bytes).totals == plan.totals
    assert all(b.totals.loss < a.totals.loss for a, b in pairwise(front))


def test_one_choice_each_is_one_point():
    problem = build_problem(sensitivity_of({"a": {Precision.FP8: 1.0}}, open_to={"a": [Precision.FP8]}))
    assert [plan.precisions for plan in pareto_front(problem)] == [{"a": Precision.FP8}]


def test_front_of_400_groups_takes_seconds():
    problem = random_problem(2, 400)
    start = time.process_time()
    front = pareto_front(problem)
    assert len(front) > 350
    assert time.process_time() - start < 10  # 1 s on an idle core; the limit is for a change of kind
