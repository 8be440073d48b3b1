"""ModelOpt's search on a tiny model: our groups, bits counted alike, every budget from one scoring."""

from pathlib import Path

import pytest
import torch

from ocrquant.adapters import load_model
from ocrquant.formats import Precision
from ocrquant.pages import load_pages
from ocrquant.sensitivity.batches import encode, plan_batches
from ocrquant.toolkits.modelopt_search import auto_quantize, plan_bits

pytest.importorskip("modelopt")

CROPS = Path(__file__).parents[2] / "calibration_data"
FORMATS = (Precision.NVFP4, Precision.FP8)


@pytest.fixture(scope="module")
def pages():
    return [page for page in load_pages(CROPS) if page.kind == "line"][:2]


@pytest.mark.parametrize("method", ["gradient", "kl_div"])
def test_plans_follow_our_groups_and_budgets(tiny_model_folder, pages, method):
    document = load_model(tiny_model_folder, dtype=torch.float32)
    names = {group.name for group in document.map.groups}
    batches = [encode(document, batch) for batch in plan_batches(document, pages, 2)]
    found = auto_quantize(document, batches, FORMATS, (5.0, 7.0, 16.0), method)
    for budget, plan in found.plans.items():
        assert set(plan) == names
        assert found.bits[budget] == plan_bits(document, plan)
    assert set(found.plans[16.0].values()) == {Precision.BF16}
    if method == "gradient":
        # The linear program keeps budgets, and spends them: a tiny loss would leave all in NVFP4.
        assert 4.5 < found.bits[5.0] <= 5.0 < found.bits[7.0] <= 7.0
    assert set(found.scores) == names
    for scores in found.scores.values():
        assert scores[Precision.NVFP4] >= scores[Precision.FP8] >= scores[Precision.BF16] == 0
    assert found.cpu_seconds > 0


def test_bits_of_a_plan_by_hand(tiny_model_folder):
    document = load_model(tiny_model_folder)
    first, second = document.map.groups[:2]
    plan = {first.name: Precision.NVFP4, second.name: Precision.BF16}
    weights = first.num_weights + second.num_weights
    expected = (4.5 * first.num_weights + 16 * second.num_weights) / weights
    assert plan_bits(document, plan) == pytest.approx(expected)
