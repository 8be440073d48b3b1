"""Instructions by kind of page."""

from __future__ import annotations

import pytest

from ocrquant.errors import RecipeError
from ocrquant.pico.tokenizer import PROMPTS
from ocrquant.prompts import FAMILY_PROMPTS, GENERAL_PROMPTS, KINDS, PICO_PROMPTS, prompts_for


def test_pico_is_asked_what_it_was_trained_on():
    assert {kind: PICO_PROMPTS[kind] for kind in PROMPTS} == PROMPTS
    assert prompts_for(set(PROMPTS.values())) == PICO_PROMPTS


def test_other_models_get_sentences():
    assert prompts_for({"Read", " the", " line."}) == GENERAL_PROMPTS
    assert set(GENERAL_PROMPTS) == set(PICO_PROMPTS) == set(KINDS)


def test_recipe_overrides_one_kind():
    found = prompts_for([], {"line": "OCR:"})
    assert found == {**GENERAL_PROMPTS, "line": "OCR:"}


@pytest.mark.parametrize("wrong", [{"lines": "x"}, {"line": " "}])
def test_wrong_override(wrong):
    with pytest.raises(RecipeError, match="model.prompts"):
        prompts_for([], wrong)


def test_family_with_instructions_of_its_own():
    assert prompts_for([], model_type="paddleocr_vl") == dict.fromkeys(KINDS, "OCR:")
    assert all(set(prompts) == set(KINDS) for prompts in FAMILY_PROMPTS.values())
    assert prompts_for([], {"block": "Table Recognition:"}, model_type="paddleocr_vl")["line"] == "OCR:"
