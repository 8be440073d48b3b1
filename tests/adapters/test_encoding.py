"""Token layout, masks and positions by hand, against the Hugging Face model, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image

from ocrquant.adapters import PageInput, open_model
from ocrquant.errors import ModelError, PageSizeError
from tests.adapters.conftest import noise_page

# Ids of the tiny tokenizer: its control tokens come first.
PAD, END, USER, ASSISTANT, START, STOP, IMAGE, LINE, BLOCK = 0, 1, 3, 4, 5, 6, 7, 9, 10


def letters(document_model, text):
    return [document_model.tokenizer.convert_tokens_to_ids(c) for c in text]


def test_one_sequence_by_hand(document_model):
    # 60 x 40 pixels are two rows of three merged tokens of 20 x 20 pixels.
    encoded = document_model.encode([noise_page(60, 40, "ab")])
    a, b = letters(document_model, "ab")
    assert encoded.input_ids.tolist() == [[USER, START, *[IMAGE] * 6, STOP, LINE, ASSISTANT, a, b, END]]
    assert encoded.image_mask.int().tolist() == [[0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]]
    assert encoded.answer_mask.int().tolist() == [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0]]
    assert encoded.valid.all()
    assert encoded.labels.tolist() == [[-100] * 10 + [a, b, END, -100]]
    assert encoded.num_answer_tokens.tolist() == [3]
    assert encoded.position_ids.tolist() == [
        [[0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8, 9, 10]],
        [[0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9, 10]],
        [[0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9, 10]],
    ]
    assert encoded.vision["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert encoded.vision["pixel_values"].shape == (24, 3 * 2 * 10 * 10)
    assert encoded.vision["pixel_values"].dtype == document_model.dtype


def test_padding_on_the_right_of_answers(document_model):
    encoded = document_model.encode([noise_page(20, 20, "a"), noise_page(60, 20, "abc\n", "block")])
    assert encoded.padding_side == "right"
    (a,) = letters(document_model, "a")
    first = [USER, START, IMAGE, STOP, LINE, ASSISTANT, a, END]
    second = [
        USER,
        START,
        IMAGE,
        IMAGE,
        IMAGE,
        STOP,
        BLOCK,
        ASSISTANT,
        *letters(document_model, "abc\n"),
        END,
    ]
    assert encoded.input_ids.tolist() == [[*first, *[PAD] * 5], second]
    assert encoded.valid.sum(1).tolist() == [8, 13]
    assert encoded.valid[0, :8].all()
    assert encoded.answer_mask.nonzero().tolist() == [[0, 5], [0, 6], *[[1, i] for i in range(7, 12)]]
    assert "attention_mask" not in encoded.forward_inputs()


def test_padding_on_the_left_of_prompts(document_model):
    pages = [noise_page(20, 20, "ignored"), noise_page(60, 20)]
    encoded = document_model.encode_prompts(pages)
    assert encoded.padding_side == "left"
    assert encoded.input_ids.tolist() == [
        [PAD, PAD, USER, START, IMAGE, STOP, LINE, ASSISTANT],
        [USER, START, IMAGE, IMAGE, IMAGE, STOP, LINE, ASSISTANT],
    ]
    assert encoded.valid.int().tolist() == [[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8]
    assert encoded.position_ids[:, 0].tolist() == [[0, 0, 0, 1, 2, 3, 4, 5]] * 3
    assert not encoded.answer_mask.any()
    assert encoded.forward_inputs()["attention_mask"].tolist() == encoded.valid.int().tolist()
    alone = document_model.encode_prompts(pages[:1])
    assert "attention_mask" not in alone.forward_inputs()


@pytest.mark.parametrize("side", ["encode", "encode_prompts"])
def test_positions_are_those_of_the_model(document_model, side):
    pages = [noise_page(20, 60, "abc"), noise_page(130, 45, "a", "block"), noise_page(300, 20, "x" * 30)]
    encoded = getattr(document_model, side)(pages)
    positions, _ = document_model.model.model.get_rope_index(
        encoded.input_ids,
        encoded.image_mask.int(),
        encoded.vision["image_grid_thw"],
        attention_mask=encoded.valid.long(),
    )
    assert torch.equal(encoded.position_ids, positions)


def test_answer_without_text_is_only_the_end(document_model):
    encoded = document_model.encode([noise_page(20, 20, "")])
    assert encoded.input_ids[0, -1] == END
    assert encoded.labels[0].tolist()[-2:] == [END, -100]


def test_page_without_text_has_no_answer(document_model):
    encoded = document_model.encode([noise_page(20, 20), noise_page(20, 20, "a")])
    assert encoded.num_answer_tokens.tolist() == [0, 2]
    assert encoded.valid.sum(1).tolist() == [6, 8]


def test_control_tokens_in_a_text_stay_text(document_model):
    encoded = document_model.encode([noise_page(20, 20, "<|image_pad|><|end|>")])
    assert (encoded.input_ids == IMAGE).sum() == 1
    assert encoded.num_answer_tokens.tolist() == [len("<|image_pad|><|end|>") + 1]
    document_model.logits(encoded)


def test_other_modes_are_converted(document_model):
    page = noise_page(60, 20, "a")
    grey = page.image.convert("L")
    one = document_model.encode([replace(page, image=grey)])
    same = document_model.encode([replace(page, image=grey.convert("RGB"))])
    assert torch.equal(one.vision["pixel_values"], same.vision["pixel_values"])


def test_lengths_from_sizes_alone(document_model):
    for width, height in ((20, 20), (61, 20), (333, 47), (5, 90), (3000, 2000)):
        page = PageInput(Image.new("RGB", (width, height)), "line")
        wanted = document_model.encode_prompts([page]).input_ids.shape[1]
        assert document_model.encoder.num_prompt_tokens(page) == wanted


def small_context(document_model, max_positions):
    found = replace(document_model.map, max_positions=max_positions)
    return open_model(document_model.model, found, document_model.folder)


def test_answer_beyond_the_context(document_model):
    small = small_context(document_model, 12)
    small.encode([noise_page(60, 20, "abc")])  # 8 + 3 + end
    with pytest.raises(
        PageSizeError, match=r"line-60 \(60 x 20 pixels\): .* at most 12 tokens.*got 13"
    ) as caught:
        small.encode([noise_page(60, 20, "abcd")])
    assert caught.value.exit_code == 19


def test_prompt_beyond_the_context(document_model):
    small = small_context(document_model, 8)
    small.encode_prompts([noise_page(40, 20)])
    with pytest.raises(PageSizeError, match=r"at most 8 tokens"):
        small.encode_prompts([noise_page(60, 20)])


def test_page_too_narrow_for_the_image_processor(document_model):
    with pytest.raises(PageSizeError, match="aspect ratio"):
        document_model.encode([noise_page(4001, 20, "a")])


def test_template_must_place_the_image(document_model, changed):
    folder = changed()
    (folder / "chat_template.jinja").write_text("{{ messages[0].role }}")
    with pytest.raises(ModelError, match="one image token"):
        open_model(document_model.model, document_model.map, folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="a chat template"):
        open_model(document_model.model, document_model.map, folder)


def test_thinking_template_is_closed_before_the_answer(document_model, changed):
    folder = changed()
    template = (folder / "chat_template.jinja").read_text()
    thought = "{% if enable_thinking is defined and not enable_thinking %}..{% else %}?{% endif %}"
    (folder / "chat_template.jinja").write_text(template + thought)
    opened = open_model(document_model.model, document_model.map, folder)
    (dot,) = letters(document_model, ".")
    assert opened.encode_prompts([noise_page(20)]).input_ids[0, -3:].tolist() == [ASSISTANT, dot, dot]


def test_prompt_of_the_recipe(document_model):
    opened = open_model(
        document_model.model, document_model.map, document_model.folder, prompts={"line": "hi"}
    )
    ids = opened.encode_prompts([noise_page(20)]).input_ids[0].tolist()
    assert ids == [USER, START, IMAGE, STOP, *letters(document_model, "hi"), ASSISTANT]
    block = opened.encode_prompts([noise_page(20, kind="block")]).input_ids[0].tolist()
    assert block[4] == BLOCK
