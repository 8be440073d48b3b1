"""Greedy decoding against `generate`, with rows that leave the batch, limits and loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ocrquant.adapters import load_model, open_model
from ocrquant.adapters.decoding import greedy
from tests.adapters.conftest import noise_page

STEPS = 40


def pages(count=6):
    return [noise_page(40 + 55 * i, 20, seed=i) for i in range(count)]


def generated(document, encoded, stop_ids, steps=STEPS):
    """Tokens of `generate` by row, up to and without the first stop token."""
    inputs = encoded.forward_inputs()
    del inputs["position_ids"]
    rows = document.model.generate(
        **{**inputs, "attention_mask": encoded.valid.long()},
        do_sample=False,
        max_new_tokens=steps,
        eos_token_id=list(stop_ids),
        pad_token_id=0,
    )[:, encoded.input_ids.shape[1] :].tolist()
    found = []
    for row in rows:
        ends = [i for i, token in enumerate(row) if token in stop_ids]
        found.append(row[: ends[0]] if ends else row[:steps])
    return found


@pytest.fixture(scope="module")
def stop_ids(document_model):
    """Tokens that end the answers of the untrained model at different steps."""
    encoded = document_model.encode_prompts(pages())
    rows = generated(document_model, encoded, [319])
    return tuple({1, *(row[3 + 5 * i] for i, row in enumerate(rows[:5]))})


def test_same_tokens_as_generate(document_model, stop_ids):
    encoded = document_model.encode_prompts(pages())
    sizes = []
    handle = document_model.linear("lm_head").register_forward_pre_hook(lambda _, x: sizes.append(len(x[0])))
    try:
        found = greedy(document_model.model, encoded, stop_ids=stop_ids, limits=[STEPS] * 6)
    finally:
        handle.remove()
    wanted = generated(document_model, encoded, stop_ids)
    assert [row.ids for row in found] == wanted
    assert len({len(row) for row in wanted}) > 2
    assert sizes[0] == 6
    assert sizes[-1] < 6  # rows left the batch on the way
    assert len(sizes) == max(row.num_tokens for row in found)
    for row in found:
        assert row.finished == (row.num_tokens == len(row.ids) + 1)
        assert row.finished or row.num_tokens == STEPS


def test_first_token_can_be_the_end(document_model):
    encoded = document_model.encode_prompts(pages(2))
    first = int(document_model.logits(encoded)[0, -1].argmax())
    row, _ = greedy(document_model.model, encoded, stop_ids=[first], limits=[5, 5])
    assert (row.ids, row.num_tokens, row.finished) == ([], 1, True)


def test_each_row_has_its_limit(document_model):
    encoded = document_model.encode_prompts(pages(3))
    found = greedy(document_model.model, encoded, stop_ids=[], limits=[2, 9, 5])
    assert [(row.num_tokens, row.finished) for row in found] == [(2, False), (9, False), (5, False)]
    whole = greedy(document_model.model, encoded, stop_ids=[], limits=[9, 9, 9])
    assert [row.ids[: len(short.ids)] for row, short in zip(whole, found, strict=True)] == [
        r.ids for r in found
    ]


def test_limit_of_nothing(document_model):
    encoded = document_model.encode_prompts(pages(2))
    found = greedy(document_model.model, encoded, stop_ids=[], limits=[0, 3])
    assert [row.num_tokens for row in found] == [0, 3]


def test_transcripts_come_in_the_order_of_the_pages(document_model):
    asked = [pages()[i] for i in (4, 0, 5, 2)]
    found = document_model.transcribe(asked, 12, 2)
    alone = [document_model.transcribe([page], 12, 1)[0] for page in asked]
    assert found == alone
    assert len({t.text for t in found}) > 1


def test_transcript_is_the_text_of_generate(document_model):
    encoded = document_model.encode_prompts(pages(2))
    wanted = document_model.tokenizer.batch_decode(
        generated(document_model, encoded, document_model.stop_ids), skip_special_tokens=True
    )
    assert [t.text for t in document_model.transcribe(pages(2), STEPS, 2)] == wanted


def test_bf16_agrees_with_generate_up_to_rounding(tiny_model_folder):
    # Where two logits are within rounding of each other the tokens may differ, and all that follow.
    document = load_model(tiny_model_folder)
    encoded = document.encode_prompts(pages())
    found = greedy(document.model, encoded, stop_ids=[], limits=[8] * 6)
    wanted = generated(document, encoded, [319], steps=8)
    assert sum(row.ids[:4] == other[:4] for row, other in zip(found, wanted, strict=True)) >= 5


def test_batches_are_sorted_by_length_and_fixed(document_model):
    asked = [pages()[i] for i in (4, 0, 5, 2, 1)]
    assert document_model.plan_batches(asked, 2) == [[1, 4], [3, 0], [2]]
    assert document_model.plan_batches([pages()[0]] * 3, 2) == [[0, 1], [2]]
    assert document_model.plan_batches([], 2) == []
    seen = [i for i, _ in document_model.transcribe_batches(asked, 1, 2)]
    assert seen == [1, 4, 3, 0, 2]


def test_context_ends_an_answer(document_model):
    prompt = document_model.encoder.num_prompt_tokens(pages()[0])
    small = open_model(
        document_model.model, replace(document_model.map, max_positions=prompt + 4), document_model.folder
    )
    (found,) = small.transcribe(pages()[:1], 50, 1)
    assert (found.num_tokens, found.finished) == (4, False)


def test_loop_ends_a_row_only_where_asked_for(document_model):
    head = document_model.linear("lm_head")
    before = head.weight.clone()
    with torch.no_grad():
        head.weight.zero_()  # all logits are equal, and the first token is chosen for ever
    try:
        (cut,) = document_model.transcribe(pages(1), 150, 1, stop_at_loop=True)
        (whole,) = document_model.transcribe(pages(1), 150, 1)
    finally:
        with torch.no_grad():
            head.weight.copy_(before)
    assert (cut.num_tokens, cut.finished) == (96, False)
    assert (whole.num_tokens, whole.finished) == (150, False)
