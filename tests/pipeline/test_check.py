"""What `check` says and refuses: too few pages for a verdict, plans that a target cannot read."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ocrquant.cli import app
from ocrquant.errors import PagesError, TargetError
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


def test_a_target_is_said_and_held_against_the_search(write_recipe):
    """Before any work: what the search may end in is refused, with the group, the rule and the fix."""

    def text_of(**export):
        return check_recipe(load_recipe(write_recipe(export=export)), device="cpu").render()

    assert "export    compressed-tensors, no target named" in text_of()
    assert "export    modelopt, which tensorrt-llm reads" in text_of(target="tensorrt-llm")
    with pytest.raises(TargetError, match=r"FP8 beside NVFP4: .* of group .*vLLM 0.30 or later"):
        text_of(target="vllm==0.29.0", format="modelopt", kv_cache="auto")
    recipe = write_recipe(export={"target": "sglang"})
    result = CliRunner().invoke(app, ["check", str(recipe)])
    assert result.exit_code == TargetError.exit_code
    assert CliRunner().invoke(app, ["check", str(recipe), "--target", "vllm"]).exit_code == 0
    assert CliRunner().invoke(app, ["check", str(recipe), "--target", "tgi"]).exit_code == 10
