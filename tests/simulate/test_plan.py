import copy

import pytest
import torch
from transformers import AutoModelForImageTextToText, DynamicCache

from ocrquant.artifacts import KvScales
from ocrquant.errors import ModelError, ShapeError
from ocrquant.formats import fp8, nvfp4
from ocrquant.formats.weights import FP8Weight
from ocrquant.simulate import QuantizedLinear, SimulatedLinear, Smoothing, apply_plan

LAYERS = "model.language_model.layers"
GATE, UP = f"{LAYERS}.0.mlp.gate_proj", f"{LAYERS}.0.mlp.up_proj"
NORM = f"{LAYERS}.0.post_attention_layernorm"
ATTENTION = f"{LAYERS}.3.self_attn"
IDS = torch.randint(20, 300, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model(tiny_model_folder):
    return AutoModelForImageTextToText.from_pretrained(tiny_model_folder, dtype=torch.bfloat16).eval()


@pytest.fixture(scope="module")
def model32(model):
    return copy.deepcopy(model).float()


@torch.no_grad()
def logits(model, **more):
    return model(input_ids=IDS, **more).logits


def quantized(model, name: str, kind: str) -> SimulatedLinear:
    weight = model.get_submodule(name).weight.detach()
    if kind == "nvfp4":
        return SimulatedLinear.of(nvfp4.quantize(weight), nvfp4.global_encode_scale(torch.tensor(4.0)))
    decode_scale = fp8.weight_decode_scale(weight, "channel")
    return SimulatedLinear.of(FP8Weight(codes=fp8.encode(weight, decode_scale), decode_scale=decode_scale))


def snapshot(model):
    """Every module and every parameter, by identity, and the bits of the parameters."""
    modules = {name: id(module) for name, module in model.named_modules()}
    hooks = {name: len(module._forward_pre_hooks) for name, module in model.named_modules()}
    bits = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    return modules, hooks, bits


def assert_unchanged(model, before) -> None:
    modules, hooks, bits = snapshot(model)
    assert (modules, hooks) == before[:2]
    assert list(bits) == list(before[2])  # the order too
    for name, (identity, value) in bits.items():
        assert identity == before[2][name][0], name
        assert torch.equal(value, before[2][name][1]), name


def smoothing_for(model, readers=(GATE, UP)) -> Smoothing:
    """Factors between 1/4 and 4 that are exact in bf16."""
    generator = torch.Generator().manual_seed(1)
    norm = model.get_submodule(NORM).weight.detach()
    factors = torch.exp2(torch.randint(-2, 3, norm.shape, generator=generator).float())
    return Smoothing(
        norms={NORM: ((norm.float() + 1) / factors - 1).to(norm.dtype)},
        columns=dict.fromkeys(readers, factors),
    )


def test_everything_is_restored(model):
    before, plain = snapshot(model), logits(model)
    plan = {GATE: quantized(model, GATE, "nvfp4"), "lm_head": quantized(model, "lm_head", "fp8")}
    kv = [KvScales(name=ATTENTION, k_decode_scale=0.01, v_decode_scale=0.01)]
    with apply_plan(model, plan, smoothing=smoothing_for(model), kv=kv):
        assert isinstance(model.get_submodule(GATE), QuantizedLinear)
        changed = logits(model)
    assert not torch.equal(changed, plain)
    assert_unchanged(model, before)
    assert torch.equal(logits(model), plain)


def test_everything_is_restored_after_an_error(model):
    before = snapshot(model)
    kv = [KvScales(name=ATTENTION, k_decode_scale=0.01, v_decode_scale=0.01)]
    with (
        pytest.raises(KeyboardInterrupt),
        apply_plan(model, {GATE: quantized(model, GATE, "fp8")}, smoothing=smoothing_for(model), kv=kv),
    ):
        raise KeyboardInterrupt
    assert_unchanged(model, before)
    wrong = {GATE: quantized(model, GATE, "fp8"), UP: quantized(model, "lm_head", "fp8")}
    with pytest.raises(ShapeError, match="up_proj"), apply_plan(model, wrong):
        pytest.fail("a wrong plan was applied")
    assert_unchanged(model, before)


def test_blocks_nest(model):
    before = snapshot(model)
    linear = quantized(model, GATE, "nvfp4")
    with apply_plan(model, {}, smoothing=smoothing_for(model)):
        smoothed = logits(model)
        with apply_plan(model, {GATE: linear}):
            nested = logits(model)
        assert torch.equal(logits(model), smoothed)
    with apply_plan(model, {GATE: linear}, smoothing=smoothing_for(model)):
        assert torch.equal(logits(model), nested)
    assert_unchanged(model, before)


def test_a_linear_is_quantized_once(model):
    linear = quantized(model, GATE, "fp8")
    with (
        apply_plan(model, {GATE: linear}),
        pytest.raises(ModelError, match=r"expected an nn\.Linear, got QuantizedLinear"),
        apply_plan(model, {GATE: linear}),
    ):
        pytest.fail("a linear was quantized twice")


@pytest.mark.parametrize("name", [f"{LAYERS}.9.mlp.gate_proj", "model.language_model.norm"])
def test_names_must_be_linears(model, name):
    with pytest.raises(ModelError, match=name), apply_plan(model, {name: quantized(model, GATE, "fp8")}):
        pytest.fail("a wrong name was accepted")


def test_smoothing_alone_changes_nothing_but_rounding(model32):
    plain = logits(model32)
    with apply_plan(model32, {}, smoothing=smoothing_for(model32)):
        smoothed = logits(model32)
    assert (smoothed - plain).abs().max() < 1e-5 * plain.abs().max()
    # A reader that is left out shows.
    with apply_plan(model32, {}, smoothing=smoothing_for(model32, readers=(GATE,))):
        assert (logits(model32) - plain).abs().max() > 1e-3 * plain.abs().max()


def test_float32_models_smooth_to_what_a_checkpoint_stores(model, model32):
    smoothing = smoothing_for(model)
    third = {name: factors * 1.001 for name, factors in smoothing.columns.items()}  # no longer exact in bf16
    stored = Smoothing(norms=smoothing.norms, columns=third, dtype=torch.bfloat16)
    with apply_plan(model, {}, smoothing=stored), apply_plan(model32, {}, smoothing=stored):
        for name in third:
            in_bf16, in_float32 = (m.get_submodule(name).weight for m in (model, model32))
            assert torch.equal(in_bf16.float(), in_float32)
            assert in_float32.dtype == torch.float32


def test_a_quantized_linear_is_not_smoothed_twice(model32):
    smoothing = smoothing_for(model32)
    folded = model32.get_submodule(GATE).weight.detach() * smoothing.columns[GATE]
    decode_scale = fp8.weight_decode_scale(folded, "channel")
    linear = SimulatedLinear.of(FP8Weight(codes=fp8.encode(folded, decode_scale), decode_scale=decode_scale))
    plain = logits(model32)
    with apply_plan(model32, {GATE: linear}, smoothing=smoothing):
        assert (logits(model32) - plain).abs().max() < 0.05 * plain.abs().max()


def test_a_tied_weight_is_not_smoothed(model):
    tied = copy.deepcopy(model)
    tied.lm_head.weight = tied.model.language_model.embed_tokens.weight
    smoothing = Smoothing(columns={"lm_head": torch.ones(64)})
    with (
        pytest.raises(ModelError, match="one tied to another module"),
        apply_plan(tied, {}, smoothing=smoothing),
    ):
        pytest.fail("a tied weight was scaled")


def test_gradients_flow_through_a_plan(model):
    plan = {name: quantized(model, name, "nvfp4") for name in (GATE, UP)}
    embedded = model.get_input_embeddings()(IDS).detach().requires_grad_()
    kv = [KvScales(name=ATTENTION, k_decode_scale=0.01, v_decode_scale=0.01)]
    gradients = []
    for linears, scales in (({}, ()), (plan, kv)):
        with apply_plan(model, linears, kv=scales):
            output = model(inputs_embeds=embedded).logits.float()
            (gradient,) = torch.autograd.grad(output.logsumexp(-1).sum(), embedded)
        gradients.append(gradient.flatten().float())
    assert torch.cosine_similarity(gradients[0], gradients[1], dim=0) > 0.9
    assert not torch.equal(gradients[0], gradients[1])


def test_cache_holds_values_of_the_grid(model):
    scales = KvScales(name=ATTENTION, k_decode_scale=0.5, v_decode_scale=0.03125)
    plain, cached = (
        DynamicCache(config=model.config.text_config),
        DynamicCache(config=model.config.text_config),
    )
    logits(model, past_key_values=plain)
    with apply_plan(model, {}, kv=[scales]):
        logits(model, past_key_values=cached)
    before, after = plain.layers[3], cached.layers[3]
    for name, scale in (("keys", 0.5), ("values", 0.03125)):
        original, stored = getattr(before, name), getattr(after, name)
        assert torch.equal(stored, fp8.quantize_dequantize(original, torch.tensor([scale])))
        assert not torch.equal(stored, original)


def test_cache_is_seen_with_and_without_a_cache(model32):
    """A step with a cache attends to quantized keys and values, and so does the pass without one."""
    scales = [KvScales(name=ATTENTION, k_decode_scale=0.02, v_decode_scale=0.004)]
    plain = logits(model32)
    with apply_plan(model32, {}, kv=scales):
        whole = logits(model32, use_cache=False)
        cache = DynamicCache(config=model32.config.text_config)
        with torch.no_grad():
            first = model32(input_ids=IDS[:, :-1], past_key_values=cache).logits
            last = model32(input_ids=IDS[:, -1:], past_key_values=cache).logits
    stepped = torch.cat([first, last], dim=1)
    noise = (whole - plain).abs().max()
    assert noise > 1e-4
    assert (stepped - whole).abs().max() < 0.05 * noise


def test_cache_needs_an_attention_module(model):
    scales = [KvScales(name=f"{LAYERS}.0.mlp", k_decode_scale=1.0, v_decode_scale=1.0)]
    with pytest.raises(ModelError, match="past_key_values"), apply_plan(model, {}, kv=scales):
        pytest.fail("a cache scale was put on a layer without a cache")
