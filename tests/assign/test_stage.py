import random
from itertools import pairwise

import pytest

from ocrquant.artifacts import Assignment, Pareto, RunFolder
from ocrquant.assign import assign, choose_formats, explain, pareto
from ocrquant.errors import BudgetError, PatternError
from ocrquant.formats import Precision
from ocrquant.recipe.sections import AssignSection, Budget
from tests.assign.builders import random_scores, random_sizes, sensitivity_of

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
INPUTS = {"sensitivity": "0" * 64}
SCORES = {
    "layers.0.mlp.down": {FP8: 1e-4, NVFP4: 4e-3},
    "layers.1.mlp.down": {FP8: -2e-7, NVFP4: 1e-3},
    "lm_head": {FP8: 3e-4, NVFP4: 9e-3},
}


def section(**budget):
    return AssignSection(budget=Budget(**budget))


@pytest.fixture
def run(tmp_path):
    with RunFolder.open(tmp_path / "run", recipe_digest="0" * 64, recipe_text="a: 1\n") as folder:
        yield folder


def test_stage_writes_plan_and_front(run):
    sensitivity = sensitivity_of(SCORES)
    written = assign(run, sensitivity, section(weight_bytes=9000), INPUTS)
    assert run.load(Assignment) == written
    assert run.is_current(Assignment, INPUTS)
    assert run.is_current(Pareto, INPUTS)
    assert list(written.groups) == list(SCORES)
    assert written.weight_bytes <= 9000
    front = run.load(Pareto)
    named = [point for point in front.front if point.name == "plan"]
    assert [point.weight_bytes for point in named] == [written.weight_bytes]
    assert named[0].predicted_loss == written.predicted_loss
    assert {point.name: point.bits_per_weight for point in front.uniform} == {
        "bf16": 16,
        "fp8": 8,
        "nvfp4": 4.5,
    }
    uniform = next(point for point in front.uniform if point.name == "nvfp4")
    assert uniform.num_groups == {NVFP4: 3}
    assert uniform.predicted_loss == pytest.approx(0.014)


def test_same_bytes_again_and_from_a_shuffled_file(run, tmp_path):
    scores = random_scores(random.Random(0), 30)
    sizes = random_sizes(random.Random(1), scores)
    texts = []
    for shuffle in (None, None, 5):
        sensitivity = sensitivity_of(scores, sizes=sizes, shuffle=shuffle)
        assign(run, sensitivity, section(bits_per_weight=6.1), INPUTS)
        assignment = run.load(Assignment)
        in_order = assignment.model_copy(update={"groups": dict(sorted(assignment.groups.items()))})
        texts.append((in_order.render(), (run.path / "pareto.json").read_bytes()))
    assert texts[0] == texts[1] == texts[2]


def test_nothing_is_written_where_the_budget_is_out_of_reach(run):
    with pytest.raises(BudgetError):
        assign(run, sensitivity_of(SCORES), section(bits_per_weight=4.4), INPUTS)
    assert not (run.path / Assignment.FILE_NAME).exists()
    assert not (run.path / Pareto.FILE_NAME).exists()


def test_plan_off_the_front_of_bytes_is_not_named():
    # The bits suffice for one group in fp8, not for the other, which has fewer rows and scales: fewer bytes.
    scores = {"tall": {FP8: 1e-3, NVFP4: 2e-3}, "wide": {FP8: 1e-4, NVFP4: 2e-3}}
    sizes = {"tall": (4096, 16), "wide": (16, 4112)}
    sensitivity = sensitivity_of(scores, sizes=sizes)
    weights = [group.num_weights for group in sensitivity.groups]
    assert weights[0] < weights[1]
    exact = (8 * weights[0] + 4.5 * weights[1]) / sum(weights)
    assignment = choose_formats(sensitivity, Budget(bits_per_weight=exact + 1e-6), INPUTS)
    assert assignment.groups == {"tall": FP8, "wide": NVFP4}
    front = pareto(sensitivity, assignment, INPUTS).front
    assert all(point.name == "" for point in front)
    assert any(
        p.weight_bytes < assignment.weight_bytes and p.predicted_loss < assignment.predicted_loss
        for p in front
    )
    assert all(b.weight_bytes > a.weight_bytes for a, b in pairwise(front))


def test_max_kl_follows_the_measured_kl():
    assignment = choose_formats(sensitivity_of(SCORES), Budget(max_kl=5.5e-3), INPUTS)
    assert assignment.score == "kl"
    assert assignment.predicted_loss <= 5.5e-3
    assert assignment.groups == {"layers.0.mlp.down": NVFP4, "layers.1.mlp.down": NVFP4, "lm_head": FP8}


def test_explanation_has_scores_and_both_neighbours():
    sensitivity = sensitivity_of(SCORES)
    assignment = choose_formats(sensitivity, Budget(bits_per_weight=8), INPUTS)
    text = explain(sensitivity, assignment, "layers.1.mlp.down")
    assert assignment.groups["layers.1.mlp.down"] is FP8
    lines = text.splitlines()
    assert lines[0] == "layers.1.mlp.down is fp8: 0.00415 MiB for 1 linear, 4,096 weights."
    assert "Measured KL in fp8: -2e-07 ± 2e-08 nats a token over 8 pages (100 tokens)" in text
    assert "counted as 0, since below zero there is only noise" in text
    smaller = next(line for line in lines if line.startswith("nvfp4 would save"))
    assert "lose 0.001 nats a token" in smaller
    # 0.004 - 0.0001 for the saved bytes of another group is dearer, 0.009 - 0.0003 dearer still.
    assert "the cheapest MiB elsewhere is layers.0.mlp.down in nvfp4" in smaller
    assert "bf16 would take 0.00366 MiB more and gain nothing by this score." in lines


def test_explanation_of_a_group_that_had_no_choice():
    sensitivity = sensitivity_of(
        SCORES, open_to={"lm_head": [BF16]}, reasons={"lm_head": "search.keep_bf16 says 'lm_head'"}
    )
    assignment = choose_formats(sensitivity, Budget(bits_per_weight=9), INPUTS)
    text = explain(sensitivity, assignment, "lm_head")
    assert "It had no other format to choose from." in text
    assert "Not everything was open: search.keep_bf16 says 'lm_head'." in text


def test_explanation_of_an_edited_plan():
    sensitivity = sensitivity_of(SCORES, open_to={"lm_head": [BF16, FP8]})
    assignment = choose_formats(sensitivity, Budget(bits_per_weight=9), INPUTS)
    edited = assignment.model_copy(update={"groups": assignment.groups | {"lm_head": NVFP4}})
    assert explain(sensitivity, edited, "lm_head") == (
        "lm_head is nvfp4 by hand: the search had bf16, fp8 to choose from."
    )
    assert "elsewhere" in explain(sensitivity, edited, "layers.0.mlp.down")


def test_explanation_of_an_unknown_group():
    sensitivity = sensitivity_of(SCORES)
    assignment = choose_formats(sensitivity, Budget(bits_per_weight=9), INPUTS)
    with pytest.raises(PatternError, match="expected a group of this run"):
        explain(sensitivity, assignment, "layers.9.mlp.down")
