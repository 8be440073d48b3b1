"""Each family against the model of transformers: structure, tokens, logits, answers, layers one by one."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForImageTextToText

from ocrquant.adapters import load_model, read_model_map
from ocrquant.adapters.families import FAMILIES
from ocrquant.errors import ModelError
from tests.adapters.conftest import noise_page
from tests.families.making import TINY

TOLERANCE = 2e-4
"""Float32 over another order of sums; logits of the tiny models have a standard deviation of about 1."""


def pages():
    return [
        noise_page(60, 40, "ab", seed=1),
        noise_page(150, 45, "two\nlines", "block", seed=2),
        noise_page(44, 90, "a longer answer", seed=3),
    ]


@pytest.fixture(scope="module", params=list(TINY))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def document(name, family_folder):
    return load_model(family_folder(name), dtype=torch.float32)


@pytest.fixture(scope="module")
def plain(name, family_folder):
    """The model as transformers loads it."""
    return AutoModelForImageTextToText.from_pretrained(family_folder(name), dtype=torch.float32).eval()


def without_positions(encoded):
    inputs = encoded.forward_inputs()
    return {
        **{k: v for k, v in inputs.items() if k != "position_ids"},
        "attention_mask": encoded.valid.long(),
    }


def test_every_family_of_the_table_has_a_tiny_model():
    assert {tiny.architecture for tiny in TINY.values()} | {"Qwen3_5ForConditionalGeneration"} == set(
        FAMILIES
    )


def test_the_map_names_every_linear_of_the_decoder_once(document):
    found = document.map
    decoder = found.module_path(found.block_prefix).rpartition(".")[0]
    linears = {
        path
        for path, module in document.model.named_modules()
        if isinstance(module, torch.nn.Linear) and path.startswith((f"{decoder}.", "lm_head"))
    }
    names = [linear.name for group in (*found.groups, *found.kept_groups) for linear in group.linears]
    paths = [found.module_path(linear) for linear in names]
    routers = {found.module_path(name) for name in found.kept if name.endswith("mlp.gate")}
    assert len(set(paths)) == len(paths)
    assert set(paths) - routers == linears
    for linear in found.linears():
        assert document.weight(linear.name).shape == (linear.out_features, linear.in_features)
        assert document.linear(linear.name).weight.shape == document.weight(linear.name).shape


def test_everything_outside_the_decoder_is_vision(document):
    found = document.map
    decoder = tuple(f"{found.block_prefix.rpartition('.')[0]}.{part}" for part in ("layers", "embed", "norm"))
    rest = [name for name in found.tensors if not name.startswith(decoder) and "lm_head" not in name]
    modules = {name.rpartition(".")[0] for name in rest}
    assert modules == {*found.vision, *(name.rpartition(".")[0] for name in found.other)}
    assert len(found.other) <= 1  # a separator of DeepSeek-OCR 2 that is no module


def test_widths_come_from_the_configuration_too(name, family_folder, tmp_path):
    folder = shutil.copytree(family_folder(name), tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    section = config.get("text_config", config)
    section["hidden_size"] = 128
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"by config.json, got \["):
        read_model_map(folder)


def test_lengths_from_sizes_alone(document):
    for page in pages():
        length = document.encode_prompts([page]).input_ids.shape[1]
        assert document.encoder.num_prompt_tokens(page) == length


@torch.no_grad()
def test_logits_are_those_of_transformers(document, plain):
    encoded = document.encode(pages())
    wanted = plain(**without_positions(encoded)).logits
    difference = (document.logits(encoded) - wanted)[encoded.valid]
    assert difference.abs().max() < TOLERANCE
    assert wanted.std() > 0.3


@torch.no_grad()
def test_the_image_matters(document):
    one, other = (document.encode([noise_page(60, 40, "ab", seed=seed)]) for seed in (1, 2))
    assert int(one.image_mask.sum()) > 0
    assert (document.logits(one) - document.logits(other)).abs().max() > 1e-3


@torch.no_grad()
def test_batch_mates_and_padding_do_not_matter(document):
    right, left = document.encode(pages()), document.encode_prompts(pages())
    answered, asked = document.logits(right), document.logits(left)[:, -1]
    for row, page in enumerate(pages()):
        alone = document.logits(document.encode([page]))[0]
        assert (answered[row, right.valid[row]] - alone).abs().max() < TOLERANCE
        alone = document.logits(document.encode_prompts([page]))[0, -1]
        assert (asked[row] - alone).abs().max() < TOLERANCE


@torch.no_grad()
def test_embedded_batches_give_the_same_bits(document):
    encoded = document.encode(pages())
    assert torch.equal(document.logits(document.embed(encoded)), document.logits(encoded))


@torch.no_grad()
def test_answers_are_those_of_generate(document, plain):
    asked = pages()[:2]
    encoded = document.encode_prompts(asked)
    rows = plain.generate(
        **without_positions(encoded), do_sample=False, max_new_tokens=12, eos_token_id=1, pad_token_id=0
    )[:, encoded.input_ids.shape[1] :]
    wanted = document.tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert [found.text for found in document.transcribe(asked, 12, 2)] == wanted


@torch.no_grad()
def test_each_layer_hands_its_output_to_the_next(document):
    """Whoever replays the decoder layer by layer sees all that the model computes."""
    seen = []
    layers = [document.module(f"{document.map.block_prefix}.{i}") for i in range(document.map.num_blocks)]
    handles = [layer.register_forward_pre_hook(lambda _, x: seen.append(x[0])) for layer in layers]
    handles += [layer.register_forward_hook(lambda _, x, y: seen.append(y)) for layer in layers]
    try:
        document.logits(document.encode(pages()))
    finally:
        for handle in handles:
            handle.remove()
    for output, following in zip(seen[1:-1:2], seen[2::2], strict=True):
        assert torch.equal(output, following)


@torch.no_grad()
def test_weights_can_stay_on_the_disk(name, document, family_folder):
    if name == "deepseek_ocr2":  # its separator has another name on the disk
        with pytest.raises(ModelError, match="set model.residency to whole"):
            load_model(family_folder(name), residency="block")
        return
    parted = load_model(family_folder(name), dtype=torch.float32, residency="block")
    encoded = document.encode(pages())
    assert torch.equal(parted.logits(encoded), document.logits(encoded))
    for linear in document.map.linears():
        assert torch.equal(parted.weight(linear.name), document.weight(linear.name))
