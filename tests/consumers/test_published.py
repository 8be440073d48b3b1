"""Folders as they are published: what processors ask for is there, and means what the model means by it."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from ocrquant.adapters import load_model
from tests.consumers.published import PUBLISHED, Published, complete
from tests.families.making import TINY, make_folder

IMAGES = ("image_token", "context_image_token")


@pytest.mark.parametrize("family", TINY)
def test_tokens_are_those_of_the_model(family, tmp_path):
    folder = make_folder(family, tmp_path / family)
    complete(family, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = PUBLISHED.get(family, Published()).tokens
    for name, token in tokens.items():
        assert getattr(tokenizer, name) == token
        assert tokenizer.convert_tokens_to_ids(token) != tokenizer.unk_token_id
    (image,) = (tokens[name] for name in IMAGES if name in tokens)
    document = load_model(folder)  # the adapters still read it
    assert tokenizer.convert_tokens_to_ids(image) == document.encoder.image_token_id


def test_settings_are_added_to_those_that_are_there(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    (tmp_path / "preprocessor_config.json").write_text('{"patch_size": 8, "image_processor_type": "Other"}')
    complete("glm_ocr", tmp_path)
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert said == {"patch_size": 8, "image_processor_type": "Glm46VImageProcessor"}
    tokens = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert tokens["model_max_length"] == 7
    assert tokens["extra_special_tokens"]["image_token"] == "<|image_pad|>"
