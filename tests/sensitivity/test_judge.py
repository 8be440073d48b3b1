"""The judge of whole plans."""

import shutil

import pytest
import torch

from ocrquant.adapters.model import PageInput
from ocrquant.artifacts import Rounding, RunFolder
from ocrquant.formats import Precision
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.pages import page_image
from ocrquant.recipe.sections import SensitivitySection
from ocrquant.sensitivity import judge as judge_module
from ocrquant.sensitivity.batches import choose_pages
from ocrquant.sensitivity.judge import PlanJudge
from ocrquant.sensitivity.precision import in_float32
from ocrquant.simulate import apply_plan, rounded_linears, rounded_smoothing

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
SECTION = SensitivitySection(candidates=[NVFP4, FP8], batch_size=2, num_pages=5)
PLAN = {"layers.1.mlp.down": NVFP4, "layers.2.gdn.qkvz": FP8, "layers.3.attention.o": BF16, "lm_head": FP8}


@pytest.fixture
def run(tmp_path, rounded_run):
    path = tmp_path / "run"
    shutil.copytree(rounded_run[0], path, ignore=shutil.ignore_patterns(".lock", ".partial"))
    with RunFolder.open(path, recipe_digest="0" * 64, recipe_text="{}") as folder:
        yield folder


@pytest.fixture
def judge(run, document, pages):
    def open_judge(**options):
        return PlanJudge(run, document, pages, run.load(Rounding), SECTION, {}, **options)

    return open_judge


@torch.no_grad()
def expected_of(run, document, page, plan, kv_cache):
    """KL and tokens of one page from two passes through the whole model."""
    rounding = run.load(Rounding)
    encoded = document.encode([PageInput(page_image(page), page.kind, page.text, page.id)])
    with rounding.open_weights(run.path) as weights, in_float32(document.model):
        linears = rounded_linears(rounding, weights, plan)
        with apply_plan(document.model, {}, smoothing=rounded_smoothing(weights)):
            plain = document.logits(encoded)[encoded.answer_mask]
            with apply_plan(document.model, linears, kv=rounding.kv if kv_cache == "fp8" else ()):
                other = document.logits(encoded)[encoded.answer_mask]
    return float(kl_from_logits(plain, other).sum()), len(plain)


@pytest.mark.parametrize(
    ("plan", "kv_cache"), [(PLAN, "bf16"), (PLAN, "fp8"), ({}, "fp8"), ({"lm_head": NVFP4}, "bf16")]
)
def test_judgement_is_the_kl_of_the_whole_plan(judge, run, document, pages, plan, kv_cache):
    with judge() as measure:
        found = measure(plan, kv_cache)
        assert measure.num_pages == 5
    expected = [expected_of(run, document, page, plan, kv_cache) for page in choose_pages(pages, 5)]
    assert sorted(count for _, count in found) == sorted(count for _, count in expected)
    for (kl, _), (slow, _) in zip(sorted(found), sorted(expected), strict=True):
        # Padding and order of sums may turn a code at the edge between two.
        assert kl == pytest.approx(slow, rel=0.05)


def test_plan_of_nothing_costs_nothing(judge):
    with judge() as measure:
        assert [kl for kl, _ in measure({"lm_head": BF16})] == [0.0] * 5


def test_a_plan_is_measured_once(judge, monkeypatch, document):
    calls, divergences = [], judge_module.divergences
    monkeypatch.setattr(
        judge_module, "divergences", lambda *given: calls.append(given) or divergences(*given)
    )
    before = {name: tensor.clone() for name, tensor in document.model.state_dict().items()}
    with judge() as measure:
        first = measure(PLAN)
        num_calls = len(calls)
        assert measure({**PLAN, "layers.0.mlp.down": BF16}) == first
    with judge() as measure:
        assert measure(PLAN) == first
        assert len(calls) == num_calls
        assert measure(PLAN, "fp8") != first
    after = document.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_order_and_memory_decide_nothing(judge, run):
    with judge() as measure:
        first = [measure(PLAN), measure({"lm_head": FP8})]
    shutil.rmtree(run.path / ".partial" / "judge")
    with judge(resident_bytes=0) as measure:
        second = [measure({"lm_head": FP8}), measure(PLAN)]
    assert second[::-1] == first
