"""Loading, teacher-forced logits and their independence of the rest of a batch."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForImageTextToText
from transformers.utils import logging

from ocrquant.adapters import load_model
from ocrquant.errors import AlreadyQuantizedError, DeviceError, ModelError
from tests.adapters.conftest import noise_page

# Sums in fp32 over another number of rows may be ordered differently; logits of the tiny model are below 1.
FP32_TOLERANCE = 2e-6
# A unit in the last place of bf16 below 1 is 2^-8.
BF16_TOLERANCE = 4 * 2.0**-8


def pages():
    return [
        noise_page(60, 20, "ab", seed=1),
        noise_page(300, 20, "a longer answer than the others", seed=2),
        noise_page(130, 45, "two\nlines", "block", seed=3),
    ]


@pytest.fixture(scope="module")
def bf16_model(tiny_model_folder):
    return load_model(tiny_model_folder)


def test_defaults(bf16_model):
    assert bf16_model.dtype == torch.bfloat16
    assert bf16_model.device == torch.device("cpu")
    assert not bf16_model.model.training
    assert not any(p.requires_grad for p in bf16_model.model.parameters())
    assert bf16_model.stop_ids == (1,)
    assert bf16_model.encoder.end_token_id == 1


@pytest.mark.parametrize(
    ("name", "tolerance"), [("document_model", FP32_TOLERANCE), ("bf16_model", BF16_TOLERANCE)]
)
def test_logits_do_not_depend_on_batch_mates(name, tolerance, request):
    document = request.getfixturevalue(name)
    encoded = document.encode(pages())
    together = document.logits(encoded)
    for row, page in enumerate(pages()):
        alone = document.logits(document.encode([page]))[0]
        difference = together[row, encoded.valid[row]] - alone
        assert difference.abs().max() <= tolerance


def test_what_a_batch_mate_shows_does_not_matter_at_all(document_model):
    first, mate, _ = pages()
    other = noise_page(300, 20, "an other answer, just as long.", seed=9)
    assert len(other.text) + 1 == len(mate.text)
    one = document_model.encode([first, mate])
    two = document_model.encode([first, noise_page(300, 20, other.text + "!", seed=9)])
    assert one.input_ids.shape == two.input_ids.shape
    inside = one.valid[0]
    assert torch.equal(document_model.logits(one)[0, inside], document_model.logits(two)[0, inside])
    assert not torch.equal(document_model.logits(one)[1], document_model.logits(two)[1])


def test_padding_on_the_left_changes_nothing(document_model):
    asked = document_model.encode_prompts(pages())
    last = document_model.logits(asked)[:, -1]
    for row, page in enumerate(pages()):
        alone = document_model.logits(document_model.encode_prompts([page]))[0, -1]
        assert (last[row] - alone).abs().max() <= FP32_TOLERANCE


def test_logits_are_those_of_transformers(document_model, tiny_model_folder):
    plain = AutoModelForImageTextToText.from_pretrained(tiny_model_folder, dtype=torch.float32).eval()
    encoded = document_model.encode(pages())
    with torch.no_grad():
        wanted = plain(
            input_ids=encoded.input_ids,
            attention_mask=encoded.valid.long(),
            mm_token_type_ids=encoded.image_mask.int(),
            **encoded.vision,
        ).logits
    difference = (document_model.logits(encoded) - wanted)[encoded.valid]
    assert difference.abs().max() <= FP32_TOLERANCE


def test_image_changes_the_answer(document_model):
    one = document_model.logits(document_model.encode([noise_page(60, 20, "ab", seed=1)]))
    two = document_model.logits(document_model.encode([noise_page(60, 20, "ab", seed=2)]))
    assert (one - two).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["document_model", "bf16_model"])
def test_embedded_batch_gives_the_same_bits(name, request):
    document = request.getfixturevalue(name)
    encoded = document.encode(pages())
    embedded = document.embed(encoded)
    assert "pixel_values" not in embedded.forward_inputs()
    assert torch.equal(document.logits(embedded), document.logits(encoded))
    visual = document.model.model.visual
    calls = []
    handle = visual.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        document.logits(embedded)
        assert calls == []
        document.logits(encoded)
        assert calls == [1]
    finally:
        handle.remove()


def test_gradients_reach_the_layers(document_model):
    encoded = document_model.embed(document_model.encode(pages()[:1]))
    name = "model.language_model.layers.0.linear_attn.in_proj_qkv"
    outputs = []
    handle = document_model.linear(name).register_forward_hook(
        lambda module, arguments, output: outputs.append(output.requires_grad_()) or output
    )
    try:
        document_model.logits(encoded).float().square().mean().backward()
    finally:
        handle.remove()
    assert outputs[0].grad.abs().max() > 0


def test_modules_by_name(document_model):
    name = "model.language_model.layers.3.self_attn"
    assert type(document_model.module(name)).__name__ == "Qwen3_5Attention"
    assert document_model.linear(f"{name}.q_proj").out_features == 256
    with pytest.raises(ModelError, match="layers.9"):
        document_model.module("model.language_model.layers.9")
    with pytest.raises(ModelError, match="expected a Linear, got Qwen3_5Attention"):
        document_model.linear(name)


def test_tensors_that_the_folder_lacks(changed):
    folder = changed(tensors=lambda tensors: tensors.pop("model.language_model.norm.weight"))
    with pytest.raises(ModelError, match=r"tensor model.language_model.norm.weight, got 1 missing"):
        load_model(folder)


def test_tied_model_loads(changed):
    def tie(config):
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True

    document = load_model(changed(tie, lambda tensors: tensors.pop("lm_head.weight")))
    embedding = document.model.get_input_embeddings().weight
    assert document.linear("lm_head").weight.data_ptr() == embedding.data_ptr()
    assert torch.isfinite(document.logits(document.encode(pages()[:1]))).all()


def test_quantized_folder_is_not_loaded(changed):
    with pytest.raises(AlreadyQuantizedError):
        load_model(changed(lambda config: config.update(quantization_config={"quant_method": "fp8"})))


def test_device_is_checked_first(tiny_model_folder):
    with pytest.raises(DeviceError):
        load_model(tiny_model_folder, "cuda:99")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_the_cpu(document_model, tiny_model_folder):
    other = load_model(tiny_model_folder, "cuda", torch.float32)
    encoded = document_model.encode(pages())
    found = other.logits(other.encode(pages())).cpu()
    assert (found - document_model.logits(encoded))[encoded.valid].abs().max() <= 1e-4
    wanted = [t.text for t in document_model.transcribe(pages(), 12, 2)]
    assert [t.text for t in other.transcribe(pages(), 12, 2)] == wanted


def test_loading_is_silent_and_leaves_the_bar_on(tiny_model_folder, capfd):
    logging.enable_progress_bar()
    load_model(tiny_model_folder)
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()
