"""A plan on a model whose weights are on the disk gives the bits of the whole model."""

import pytest
import torch

from ocrquant.adapters import load_model
from ocrquant.formats import nvfp4
from ocrquant.simulate import SimulatedLinear, Smoothing, apply_plan
from ocrquant.stored_parameter import StoredParameter

LAYERS = "model.language_model.layers"
NORM = f"{LAYERS}.1.post_attention_layernorm"
GATE, UP = f"{LAYERS}.1.mlp.gate_proj", f"{LAYERS}.1.mlp.up_proj"
Q = f"{LAYERS}.3.self_attn.q_proj"
IDS = torch.randint(20, 300, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def whole(tiny_model_folder):
    return load_model(tiny_model_folder)


@pytest.fixture(scope="module")
def parted(tiny_model_folder):
    return load_model(tiny_model_folder, residency="block")


@torch.no_grad()
def logits(document):
    return document.model(input_ids=IDS, use_cache=False).logits


def plan(whole):
    scale = nvfp4.global_encode_scale(torch.tensor(4.0))
    return {name: SimulatedLinear.of(nvfp4.quantize(whole.weight(name)), scale) for name in (GATE, Q)}


def smoothing(whole):
    generator = torch.Generator().manual_seed(1)
    norm = whole.weight(NORM)
    factors = torch.rand(norm.shape, generator=generator) + 0.5
    weight = ((norm.float() + 1) / factors - 1).to(norm.dtype)
    return Smoothing(norms={NORM: weight}, columns={GATE: factors, UP: factors}, dtype=torch.bfloat16)


def test_quantized_and_smoothed_logits_are_the_same_bits(whole, parted):
    plain, found = logits(parted), []
    for document in (whole, parted):
        with apply_plan(document.model, plan(whole), smoothing=smoothing(whole)):
            found.append(logits(document))
    assert torch.equal(*found)
    assert not torch.equal(found[1], plain)
    assert torch.equal(logits(parted), plain)


def test_widened_after_smoothing_and_quantized_inside_a_block(whole, parted):
    """The order of the scores: smoothing, float32, then one group of a block that is in memory."""
    found, linears, smooth = [], plan(whole), smoothing(whole)
    for document in (whole, parted):
        with apply_plan(document.model, {}, smoothing=smooth):
            parameters = list(document.model.parameters())
            for parameter in parameters:
                parameter.data = parameter.data.float()
            with document.resident_block(1) as block, apply_plan(document.model, linears):
                assert not isinstance(block.mlp.up_proj.weight, StoredParameter)
                found.append(logits(document))
            found.append(document.weight(UP))
            for parameter in parameters:
                parameter.data = parameter.data.bfloat16()
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert found[1].dtype == torch.float32
    assert torch.equal(logits(whole), logits(parted))
