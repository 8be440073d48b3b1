"""The faster modules against the originals of transformers: outputs, caches and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet, Qwen3_5VisionPatchEmbed

from ocrquant.adapters import load_model
from ocrquant.adapters.qwen3_5_modules import LeanGatedDeltaNet, LeanPatchEmbed, use_lean_modules
from tests.kernels.producing import needs_native

LAYER = "model.language_model.layers.1.linear_attn"
TOLERANCE = 1e-6


@pytest.fixture
def pair(document_model):
    """A lean layer and the original with the same weights."""
    lean = copy.deepcopy(document_model.module(LAYER))
    with torch.no_grad():
        lean.A_log.normal_()
        lean.dt_bias.normal_()
        for parameter in (lean.in_proj_a.weight, lean.in_proj_b.weight, lean.conv1d.weight):
            parameter.mul_(10)
    original = copy.deepcopy(lean)
    original.__class__ = Qwen3_5GatedDeltaNet
    return lean, original


def hidden(batch=3, length=70):
    torch.manual_seed(length)
    return torch.randn(batch, length, 64)


@needs_native
def test_modules_are_switched(document_model):
    assert type(document_model.module(LAYER)) is LeanGatedDeltaNet
    assert type(document_model.module("model.visual.patch_embed")) is LeanPatchEmbed


def test_without_the_extension_the_recurrence_stays(tiny_model_folder, monkeypatch):
    monkeypatch.setattr("ocrquant.adapters.qwen3_5_modules.supported", lambda *_: False)
    plain = load_model(tiny_model_folder, dtype=torch.float32)
    assert type(plain.module(LAYER)) is Qwen3_5GatedDeltaNet


def test_subclasses_are_left_alone(document_model):
    class Other(Qwen3_5GatedDeltaNet):
        pass

    model = copy.deepcopy(document_model.model)
    model.get_submodule(LAYER).__class__ = Other
    use_lean_modules(model)
    assert type(model.get_submodule(LAYER)) is Other


@pytest.mark.parametrize("length", [1, 3, 64, 70])
def test_whole_sequences(pair, length):
    lean, original = pair
    x = hidden(length=length)
    with torch.no_grad():
        assert (lean(x) - original(x)).abs().max() < TOLERANCE
    assert original(x).abs().max() > 0.01


def test_padding_on_the_left(pair):
    lean, original = pair
    x, mask = hidden(), torch.ones(3, 70)
    mask[1, :13] = 0
    with torch.no_grad():
        assert (lean(x, attention_mask=mask) - original(x, attention_mask=mask)).abs().max() < TOLERANCE
        alone = lean(x[1:2, 13:])
    assert (lean(x, attention_mask=mask)[1:2, 13:] - alone).abs().max() < TOLERANCE


@pytest.mark.parametrize("parts", [[5, 1, 1, 1], [1, 1, 1], [2, 6, 1, 3]])
def test_caches_carry_on(pair, document_model, parts):
    config = document_model.model.config.text_config
    caches = [DynamicCache(config=config), DynamicCache(config=config)]
    with torch.no_grad():
        for number, length in enumerate(parts):
            x = hidden(length=length) + number
            found, wanted = (m(x, c) for m, c in zip(pair, caches, strict=True))
            assert (found - wanted).abs().max() < TOLERANCE
    states = [cache.layers[1] for cache in caches]
    assert torch.equal(states[0].conv_states[0], states[1].conv_states[0])
    assert (states[0].recurrent_states[0] - states[1].recurrent_states[0]).abs().max() < 1e-5
    assert states[0].recurrent_states[0].abs().max() > 0.01


def test_recorded_past_goes_the_original_way(pair, document_model):
    caches = [DynamicCache(config=document_model.model.config.text_config) for _ in range(2)]
    with torch.no_grad():
        for length in (4, 1):
            outputs = []
            for module, cache in zip(pair, caches, strict=True):
                cache.layers[1].activate_past_recording()
                outputs.append(module(hidden(length=length), cache))
            assert torch.equal(*outputs)
    assert caches[0].layers[1].conv_states[0].shape == caches[1].layers[1].conv_states[0].shape


def test_gradients(pair):
    inputs = [hidden(length=40).requires_grad_() for _ in pair]
    torch.manual_seed(3)
    weight = torch.randn(3, 40, 64)
    for module, x in zip(pair, inputs, strict=True):
        (module(x) * weight).sum().backward()
    found, wanted = (x.grad for x in inputs)
    assert (found - wanted).abs().max() < 1e-5 * max(1.0, float(wanted.abs().max()))
    assert wanted.abs().max() > 1e-3


def test_gradients_also_while_a_cache_is_filled(pair, document_model):
    lean, _ = pair
    config = document_model.model.config.text_config
    x, y = hidden(length=9).requires_grad_(), hidden(length=9).requires_grad_()
    lean(x).square().sum().backward()
    cache = DynamicCache(config=config)
    lean(y, cache).square().sum().backward()
    assert torch.equal(x.grad, y.grad)
    with pytest.raises(AssertionError, match="no gradient"):
        lean(y, cache)


def test_patch_embedding(document_model):
    lean = document_model.module("model.visual.patch_embed")
    original = copy.deepcopy(lean)
    original.__class__ = Qwen3_5VisionPatchEmbed
    patches = torch.randn(40, 600)
    assert (lean(patches) - original(patches)).abs().max() < 1e-5
