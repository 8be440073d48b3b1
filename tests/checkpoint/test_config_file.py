import json

import pytest

from ocrquant.checkpoint import plain_config, with_quantization_config
from ocrquant.errors import ModelError

CONFIG = """{
  "b": {"x": [1,  2]},
  "a": "\\u00fc ü }"
}
"""
PLAN = {"z": {"k": [1]}, "y": "re:\\.x$"}


def added(config, plan=PLAN, *, tied_head=False):
    return with_quantization_config(config.encode(), plan, tied_head=tied_head).decode()


def test_config_keeps_every_byte_and_gets_one_key():
    text = added(CONFIG)
    assert text.startswith(CONFIG[:-3])
    assert text[len(CONFIG) - 3 :].splitlines() == [
        ",",
        '  "quantization_config": {',
        '    "y": "re:\\\\.x$",',
        '    "z": {',
        '      "k": [',
        "        1",
        "      ]",
        "    }",
        "  }",
        "}",
    ]
    config = json.loads(text)
    assert list(config) == ["b", "a", "quantization_config"]
    assert config == json.loads(CONFIG) | {"quantization_config": PLAN}
    assert added(CONFIG, None) == CONFIG


@pytest.mark.parametrize("text", ["{}", '{"a":1}', "{\n}", '{"a": {"b": {}}}\n\n', CONFIG])
def test_config_of_any_style_and_back(tmp_path, text):
    found = added(text)
    assert json.loads(found) == json.loads(text) | {"quantization_config": PLAN}
    (tmp_path / "config.json").write_text(found, encoding="utf-8")
    plain = plain_config(tmp_path)
    assert json.loads(plain) == json.loads(text)
    # What another format says of the same model does not hang on what was there before.
    assert added(plain.decode(), {"other": 1}) == added(text, {"other": 1})


@pytest.mark.parametrize("place", ["first", "last"])
def test_what_another_program_wrote_is_taken_out(tmp_path, place):
    items = [("quantization_config", PLAN), ("a", {"quantization_config": 2})]
    config = dict(items if place == "first" else items[::-1])
    (tmp_path / "config.json").write_text(json.dumps(config, indent=4))
    assert json.loads(plain_config(tmp_path)) == {"a": {"quantization_config": 2}}


def test_a_config_without_a_plan_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    assert plain_config(tmp_path) == CONFIG.encode()


@pytest.mark.parametrize("text", [None, "[]", "{"])
def test_unusable_config_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        plain_config(tmp_path)


TEXT, VISION = {"vocab_size": 3}, {"depth": 2}


@pytest.mark.parametrize("inner", [{}, {"tie_word_embeddings": False}, {"tie_word_embeddings": True}])
@pytest.mark.parametrize("outer", [{}, {"tie_word_embeddings": False}, {"tie_word_embeddings": True}])
def test_a_shared_head_is_said_wherever_readers_look(inner, outer):
    """transformers reads the outer flag, vLLM the one beside the vocabulary, whatever that part is called."""
    config = {**outer, "language_config": {**TEXT, **inner}, "vision_config": VISION}
    found = json.loads(added(json.dumps(config), tied_head=True))
    assert found["tie_word_embeddings"] is found["language_config"]["tie_word_embeddings"] is True
    assert found["vision_config"] == VISION
    assert json.loads(added(json.dumps(config), tied_head=False)) == config | {"quantization_config": PLAN}


def test_flags_that_agree_change_no_byte():
    text = '{"tie_word_embeddings":true, "text_config":{"vocab_size":3,"tie_word_embeddings":true}}'
    assert added(text, None, tied_head=True) == text
