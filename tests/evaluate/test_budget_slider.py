import base64
import sys

import pytest

from ocrquant.assign import choose_formats
from ocrquant.errors import BudgetError
from ocrquant.evaluate.budget_slider import BudgetSlider
from ocrquant.recipe import Budget
from tests.evaluate import making

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def slider():
    scores = making.sensitivity()
    return BudgetSlider(scores, choose_formats(scores, Budget(bits_per_weight=6.5), {}))


def test_range_is_what_plans_can_reach(slider):
    # layers.0.gdn.out cannot be NVFP4.
    sizes = making.group_names()
    total = sum(sizes.values())
    assert slider.most_bits == 16
    exact = 4.5 + 3.5 * sizes["layers.0.gdn.out"] / total
    assert exact <= slider.least_bits < exact + 0.01
    assert slider.at(slider.least_bits).bits_per_weight == pytest.approx(exact)
    with pytest.raises(BudgetError):
        slider.at(slider.least_bits - 0.02)


def test_plan_at_a_budget_is_that_of_the_solver(slider):
    plan = slider.at(8.0)
    assert plan == choose_formats(making.sensitivity(), Budget(bits_per_weight=8.0), {})
    assert slider.words(slider.at(6.5)).endswith("0 groups differ from the plan.")
    changed = int(slider.words(plan).split("; ")[1].split()[0])
    first = slider.at(6.5).groups
    assert changed == sum(first[name] != precision for name, precision in plan.groups.items()) > 0


def test_dragging_shows_another_plan(slider):
    dragged, sentence, image, table = slider.widget.children
    assert dragged.value == 6.5
    assert (image.value[:4], table.value) == (PNG, "")
    before = image.value
    dragged.value = 10.0
    assert sentence.value == slider.words(slider.at(10.0))
    assert image.value[:4] == PNG
    assert image.value != before
    assert "<td>fp8</td>" in table.value
    dragged.value = dragged.min
    assert "differ from the plan" in sentence.value


def test_it_begins_at_a_plan_that_no_budget_in_bits_asked_for():
    scores = making.sensitivity()
    plan = choose_formats(scores, Budget(weight_bytes=3_000_000), {})
    sentence = BudgetSlider(scores, plan).widget.children[1].value
    assert sentence.endswith("0 groups differ from the plan.")


def test_a_front_end_without_widgets_gets_a_picture(slider, monkeypatch):
    bundle = slider._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert base64.b64decode(bundle["image/png"])[:4] == PNG
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    scores = making.sensitivity()
    plain = BudgetSlider(scores, making.assignment(scores))._repr_mimebundle_()
    assert set(plain) == {"text/plain", "image/png"}
