"""A model in parts is the whole model, bit for bit, and holds one part at a time."""

import gc
import shutil

import pytest
import torch

from ocrquant.adapters import load_model, residency
from ocrquant.errors import DeviceError, ModelError
from ocrquant.stored_parameter import StoredParameter
from tests.adapters.conftest import noise_page

LAYERS = "model.language_model.layers"
DOWN = f"{LAYERS}.1.mlp.down_proj"


def pages():
    return [noise_page(60, 20, "ab", seed=1), noise_page(130, 45, "two\nlines", "block", seed=3)]


@pytest.fixture(scope="module")
def whole(tiny_model_folder):
    return load_model(tiny_model_folder)


@pytest.fixture(params=["only blocks", "all that is large"])
def parted(tiny_model_folder, monkeypatch, request):
    if request.param != "only blocks":
        monkeypatch.setattr(residency, "KEPT_PART_BYTES", 1000)
    return load_model(tiny_model_folder, residency="block")


def stored(document):
    named = document.model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if isinstance(parameter, StoredParameter)}


def test_blocks_are_not_in_memory(parted, whole):
    names = {name for name, _ in whole.model.named_parameters() if name.startswith(LAYERS)}
    assert names <= stored(parted)
    assert all(p.is_meta for p in parted.model.parameters() if isinstance(p, StoredParameter))


def test_large_parts_around_the_decoder_are_not_either(tiny_model_folder, monkeypatch):
    monkeypatch.setattr(residency, "KEPT_PART_BYTES", 1000)
    around = {n for n in stored(load_model(tiny_model_folder, residency="block")) if LAYERS not in n}
    assert {"lm_head.weight", "model.language_model.embed_tokens.weight"} <= around
    assert any(name.startswith("model.visual.") for name in around)
    assert "model.language_model.norm.weight" not in around


def test_logits_are_the_same_bits(parted, whole):
    before = stored(parted)
    assert torch.equal(parted.logits(parted.encode(pages())), whole.logits(whole.encode(pages())))
    assert stored(parted) == before


def test_settings_and_buffers_are_those_of_the_whole_model(parted, whole):
    assert parted.device == whole.device
    assert parted.dtype == whole.dtype
    assert parted.stop_ids == whole.stop_ids
    assert not parted.model.training
    buffers = dict(whole.model.named_buffers())
    assert buffers
    for name, buffer in parted.model.named_buffers():
        assert torch.equal(buffer, buffers[name])


def test_one_block_is_in_memory_at_a_time(parted):
    count = len(stored(parted))
    seen = []
    for index in range(parted.map.num_blocks):
        block = parted.module(f"{LAYERS}.{index}")
        size = len(list(block.parameters()))
        block.mlp.register_forward_hook(
            lambda *_, size=size: seen.append(count - len(stored(parted)) == size)
        )
    parted.logits(parted.encode(pages()))
    assert seen == [True] * parted.map.num_blocks


def test_a_block_that_is_used_twice_is_loaded_once(parted, monkeypatch):
    calls = []
    original = parted.residency.read
    monkeypatch.setattr(parted.residency, "read", lambda *a: calls.append(a[0]) or original(*a))
    with parted.resident_block(1) as block:
        count = len(calls)
        assert count == len(list(block.parameters()))
        with parted.resident_block(1):
            pass
        block.mlp(torch.zeros(1, 2, 64, dtype=torch.bfloat16))
        assert not any(isinstance(p, StoredParameter) for p in block.parameters())
    assert len(calls) == count
    assert all(isinstance(p, StoredParameter) for p in block.parameters())


def test_an_error_inside_frees_the_block(parted):
    with pytest.raises(ValueError, match="stop"), parted.resident_block(0):
        raise ValueError("stop")
    assert all(isinstance(p, StoredParameter) for p in parted.module(f"{LAYERS}.0").parameters())


def test_memory_is_given_back(parted):
    def count():
        gc.collect()
        kinds = (o for o in gc.get_objects() if type(o) is torch.nn.Parameter)
        return sum(o.numel() for o in kinds if not o.is_meta)

    before = count()
    with parted.resident_block(0) as block:
        assert count() - before == sum(p.numel() for p in block.parameters())
        del block
    assert count() == before


@pytest.mark.parametrize("name", [DOWN, f"{LAYERS}.3.input_layernorm", "lm_head"])
def test_a_weight_is_read_by_name(parted, whole, name):
    assert torch.equal(parted.weight(name), whole.weight(name))


def test_the_dtype_is_that_of_the_moment(parted, whole):
    for parameter in parted.model.parameters():
        parameter.data = parameter.data.float()
    assert torch.equal(parted.weight(DOWN), whole.weight(DOWN).float())
    with parted.resident_block(1) as block:
        assert block.mlp.down_proj.weight.dtype == torch.float32
        assert torch.equal(block.mlp.down_proj.weight, whole.weight(DOWN).float())


def test_changes_are_made_in_the_dtype_in_which_they_were_asked_for(parted, whole):
    parameter = parted.linear(DOWN).weight
    undo = parameter.change(lambda w: w * 1.37)
    parameter.data = parameter.data.float()
    expected = (whole.weight(DOWN) * 1.37).float()
    assert not torch.equal(expected, whole.weight(DOWN).float() * 1.37)
    assert torch.equal(parted.weight(DOWN), expected)
    with parted.resident_block(1) as block:
        assert torch.equal(block.mlp.down_proj.weight, expected)
    undo()
    assert torch.equal(parted.weight(DOWN), whole.weight(DOWN).float())


def test_another_dtype_than_the_stored_one(tiny_model_folder):
    whole = load_model(tiny_model_folder, dtype=torch.float16)
    parted = load_model(tiny_model_folder, dtype=torch.float16, residency="block")
    assert torch.equal(parted.weight(DOWN), whole.weight(DOWN))
    parted.linear(DOWN).weight.data = parted.linear(DOWN).weight.data.float()
    assert torch.equal(parted.weight(DOWN), whole.weight(DOWN).float())


def test_transcription_is_refused(parted):
    with pytest.raises(DeviceError, match=r"set model\.residency to whole"):
        parted.transcribe(pages(), 4, 2)


def test_a_tensor_that_vanished_is_named(tiny_model_folder, tmp_path):
    folder = shutil.copytree(tiny_model_folder, tmp_path / "model")
    parted = load_model(folder, residency="block")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"layers\.0\..*fetch the weights again"), parted.resident_block(0):
        pass
    assert all(isinstance(p, StoredParameter) for p in parted.module(f"{LAYERS}.0").parameters())
