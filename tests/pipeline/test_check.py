"""What `check` says and refuses of the held-out pages when a verdict on equivalence is asked for."""

from types import SimpleNamespace

import pytest

from ocrquant.errors import PagesError
from ocrquant.pipeline.check import check_recipe
from ocrquant.pipeline.stages import _page_inputs
from ocrquant.recipe import load_recipe

MARGIN = {"equivalence": {"cer_margin": 0.01}}


def test_too_few_documents_for_a_verdict_are_said(write_recipe):
    text = check_recipe(load_recipe(write_recipe(evaluate=MARGIN)), device="cpu").render()
    assert "verdict   none on lines, from 3 documents: at least 10 are needed" in text
    assert "verdict" not in check_recipe(load_recipe(write_recipe()), device="cpu").render()


def test_a_gate_that_no_result_could_pass_is_refused(write_recipe):
    recipe = load_recipe(write_recipe(evaluate=MARGIN, gate={"require_equivalence": True}))
    with pytest.raises(
        PagesError, match="lines for gate.require_equivalence: expected at least 10 documents"
    ):
        check_recipe(recipe, device="cpu")


def test_a_margin_transcribes_no_page_again(write_recipe):
    def inputs(**evaluate):
        recipe = load_recipe(write_recipe(evaluate={"max_new_tokens": 6, "batch_size": 2} | evaluate))
        context = SimpleNamespace(
            recipe=recipe, source_digest="s", model_digest="m", needs_transcription=True
        )
        return _page_inputs(context)

    assert inputs() == inputs(**MARGIN) == inputs(num_bootstrap_samples=300)
    assert inputs() != inputs(max_new_tokens=7)
    assert inputs() != inputs(batch_size=3)
