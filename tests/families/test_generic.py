"""An architecture that is not in the table: refused, or guessed with every guess told."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from ocrquant.adapters import load_model, read_model_map
from ocrquant.errors import ModelError
from ocrquant.pipeline import check_recipe
from ocrquant.recipe import load_recipe
from tests.adapters.conftest import noise_page
from tests.families.whole_way import go_the_whole_way, write_recipe


@pytest.fixture
def unknown(family_folder, tmp_path):
    """A function that copies a tiny model under the name of an architecture that nobody knows."""

    def make(name="qwen3_vl", change=None):
        folder = shutil.copytree(family_folder(name), tmp_path / "unknown")
        config = json.loads((folder / "config.json").read_text())
        config["architectures"] = ["NewForConditionalGeneration"]
        (folder / "config.json").write_text(json.dumps(config))
        if change is not None:
            tensors = load_file(folder / "model.safetensors")
            change(tensors)
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def test_refused_with_the_way_out(unknown):
    with pytest.raises(ModelError, match=r"got NewForConditionalGeneration; .*--allow-generic"):
        read_model_map(unknown())


@pytest.mark.parametrize("name", ["qwen3_vl", "glm_ocr", "smolvlm"])
def test_only_what_every_decoder_has_is_searched(unknown, family_folder, name):
    found = read_model_map(unknown(name), allow_generic=True)
    known = read_model_map(family_folder(name))
    assert [g.name for g in found.groups] == [g.name for g in known.groups if g.block is not None]
    assert {g.linears for g in found.groups} == {g.linears for g in known.groups if g.block is not None}
    assert (found.norm_folds, found.kv_attention) == ((), ())
    assert "lm_head" in found.kept
    assert set(known.vision) == set(found.vision)
    assert any("is the decoder" in guess for guess in found.guesses)
    assert known.guesses == ()


def test_a_linear_of_unknown_purpose_stays_and_is_told(unknown):
    layer = "model.language_model.layers.0"
    folder = unknown(change=lambda t: t.update({f"{layer}.extra.weight": torch.zeros(64, 64).bfloat16()}))
    found = read_model_map(folder, allow_generic=True)
    assert "unknown purpose" in found.kept[f"{layer}.extra"]
    assert any(guess.startswith("1 further linear") for guess in found.guesses)


def test_experts_stored_as_one_tensor_stay_too(unknown):
    experts = "model.language_model.layers.1.mlp.experts"
    stacks = {f"{experts}.gate_up_proj": (2, 96, 64), f"{experts}.down_proj": (2, 64, 48)}
    folder = unknown(change=lambda t: t.update({n: torch.zeros(s).bfloat16() for n, s in stacks.items()}))
    found = read_model_map(folder, allow_generic=True)
    assert "unknown purpose" in found.kept[f"{experts}.1.up_proj"]
    assert any(guess.startswith("6 further linears") for guess in found.guesses)


def test_two_decoders_are_no_guess(unknown):
    def twice(tensors):
        tensors |= {
            name.replace("language_model", "other_model"): tensor.clone()
            for name, tensor in list(tensors.items())
            if "language_model" in name
        }

    with pytest.raises(ModelError, match="expected one decoder of 2 layers"):
        read_model_map(unknown(change=twice), allow_generic=True)


def test_an_image_processor_that_nobody_knows(unknown):
    folder = unknown()
    path = folder / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "image_processor_type": "NewImageProcessor"}))
    with pytest.raises(ModelError, match="got NewImageProcessor"):
        read_model_map(folder, allow_generic=True)


@torch.no_grad()
def test_it_reads_as_the_known_model_does(unknown, family_folder):
    pages = [noise_page(60, 40, "ab", seed=1), noise_page(150, 45, "two\nlines", "block", seed=2)]
    guessed = load_model(unknown(), dtype=torch.float32, allow_generic=True)
    known = load_model(family_folder("qwen3_vl"), dtype=torch.float32)
    assert torch.equal(guessed.logits(guessed.encode(pages)), known.logits(known.encode(pages)))


def test_check_prints_the_guesses(unknown, tmp_path):
    folder = unknown()
    recipe = write_recipe(folder, tmp_path, model={"path": str(folder), "allow_generic": True})
    text = check_recipe(load_recipe(recipe)).render()
    assert text.count("\nguess     ") == 7


@pytest.mark.slow
def test_the_whole_way(unknown, tmp_path):
    folder = unknown()
    model = {"path": str(folder), "allow_generic": True}
    run = go_the_whole_way(folder, tmp_path, model=model, export={"kv_cache": "bf16"})
    assert (run / "report.md").is_file()
