"""Every tensor is taken once or left with a reason; what is missing, odd or misshapen is refused by name."""

import math
from dataclasses import replace

import pytest
import torch

from ocrquant.errors import ModelError, WeightValueError
from ocrquant.formats import fp8, nvfp4
from ocrquant.formats.nvfp4_scales import global_encode_scale
from ocrquant.formats.weights import FP8Weight
from ocrquant.models.registry import build_model
from ocrquant.models.weights import MappingSource, WeightReader
from tests.models import reference
from tests.models.stepping import Part, Stepper

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny():
    """Configuration and tensors of the text side of a tied model."""
    model = reference.make("qwen3_5", torch.float32, tied=True)
    config = model.config.to_dict()
    del config["vision_config"]
    tensors = {n: t for n, t in model.state_dict().items() if "visual" not in n and n != "lm_head.weight"}
    return config, tensors


def build(config, tensors, **parts):
    return build_model(config, MappingSource(tensors, **parts), torch.float32, CPU, max_rows=4)


def fp8_weight(weight):
    scale = fp8.weight_decode_scale(weight, "channel")
    return FP8Weight(codes=fp8.encode(weight, scale), decode_scale=scale)


def test_every_tensor_is_needed(tiny):
    config, tensors = tiny
    build(config, tensors)
    for name in tensors:
        left = {other: tensor for other, tensor in tensors.items() if other != name}
        with pytest.raises(ModelError, match=f"missing tensor: expected {name}"):
            build(config, left)


def test_every_shape_is_checked(tiny):
    config, tensors = tiny
    for name, tensor in tensors.items():
        with pytest.raises(ModelError, match=f"{name}: expected shape"):
            build(config, {**tensors, name: torch.cat([tensor, tensor])})


@pytest.mark.parametrize(
    "name",
    [
        "model.language_model.layers.0.mlp.gate_proj.bias",
        "model.language_model.layers.9.input_layernorm.weight",
        "model.visual.pos_embed.weight",
        "model.language_model.layers.0.mlp.gate_proj.weight_zero_point",
        "model.language_model.layers.0.linear_attn.k_scale",
        "mtps.weight",
    ],
)
def test_an_odd_tensor_is_refused(tiny, name):
    config, tensors = tiny
    with pytest.raises(ModelError, match=f"unexpected tensors: .*{name}"):
        build(config, {**tensors, name: torch.zeros(4)})


def test_many_odd_tensors_are_counted(tiny):
    config, tensors = tiny
    odd = {f"odd.{number}": torch.zeros(1) for number in range(9)}
    with pytest.raises(ModelError, match=r"odd\.0, .*odd\.4 and 4 more"):
        build(config, {**tensors, **odd})


def test_a_misshapen_quantized_weight_is_refused(tiny):
    config, tensors = tiny
    name = "model.language_model.layers.0.mlp.down_proj"
    left = {other: tensor for other, tensor in tensors.items() if other != f"{name}.weight"}
    build(config, left, quantized={name: fp8_weight(tensors[f"{name}.weight"])})
    with pytest.raises(ModelError, match=f"{name}.weight: expected shape"):
        build(config, left, quantized={name: fp8_weight(torch.ones(8, 16))})


def test_an_embedding_or_conv_cannot_be_quantized(tiny):
    config, tensors = tiny
    name = "model.language_model.embed_tokens"
    weight = tensors[f"{name}.weight"]
    with pytest.raises(ModelError, match=f"{name}.*: expected an unquantized weight"):
        build(config, tensors, quantized={name: fp8_weight(weight)})


def test_mtp_heads_are_left_with_a_reason(tiny):
    config, tensors = tiny
    model = build(config, {**tensors, "mtp.fc.weight": torch.zeros(2, 2)})
    assert list(model.ignored) == ["mtp.fc.weight"]
    assert "draft" in model.ignored["mtp.fc.weight"]


def test_a_tied_head_must_equal_the_embedding(tiny):
    config, tensors = tiny
    table = tensors["model.language_model.embed_tokens.weight"]
    build(config, {**tensors, "lm_head.weight": table.clone()})
    with pytest.raises(ModelError, match="lm_head.weight: expected the weight of the embedding"):
        build(config, {**tensors, "lm_head.weight": table + 1})
    with pytest.raises(ModelError, match="lm_head.weight: expected the weight of the embedding"):
        build(config, tensors, quantized={"lm_head": fp8_weight(table)})


def test_weights_are_in_memory_once(tiny):
    """A tied head is the embedding's weight, packed; a few norms are kept in float32."""
    config, tensors = tiny
    tensors = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    model = build_model(config, MappingSource(tensors), torch.bfloat16, CPU, max_rows=4)
    assert model.weight_bytes == pytest.approx(sum(t.nbytes for t in tensors.values()), rel=0.02)


ATTENTION = "model.language_model.layers.3.self_attn"


def test_scales_of_caches_are_handed_on(tiny):
    config, tensors = tiny
    assert build(config, tensors).kv_scales is None
    assert build(config, tensors, kv_scales={ATTENTION: (0.25, 0.5)}).kv_scales == ((0.25, 0.5),)


@pytest.mark.parametrize(("asked", "codes"), [(True, False), (False, True)])
def test_a_cache_that_is_not_the_checkpoints_is_refused(tiny, asked, codes):
    config, tensors = tiny
    model = build(config, tensors, kv_scales={ATTENTION: (0.25, 0.5)} if asked else {})
    one = Part(0, torch.tensor([9]), torch.zeros(3, 1))
    Stepper(model, codes=asked).step([one])
    stepper = Stepper(model, codes=asked)
    scales = [0.25] if codes else [1.0]
    caches = [
        torch.zeros(one.shape, dtype=torch.uint8 if codes else torch.float32) for one in stepper.caches.k
    ]
    stepper.caches = replace(stepper.caches, k=caches, v=caches, k_scales=scales, v_scales=scales)
    with pytest.raises(ModelError, match="caches of keys and values: expected 1 layers of"):
        stepper.step([one])


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_of_a_cache_is_a_positive_number(tiny, scale):
    config, tensors = tiny
    with pytest.raises(ModelError, match=f"cache of {ATTENTION}"):
        build(config, tensors, kv_scales={ATTENTION: (0.25, scale)})


def test_scales_of_a_cache_that_is_none_are_refused(tiny):
    config, tensors = tiny
    with pytest.raises(ModelError, match=r"unexpected tensors: .*layers.2.self_attn.k_scale"):
        build(config, tensors, kv_scales={"model.language_model.layers.2.self_attn": (1.0, 1.0)})


def test_scales_are_for_all_caches_or_none():
    source = MappingSource({}, kv_scales={"a": (1.0, 1.0)})
    with pytest.raises(ModelError, match="b: expected scales of its FP8 cache"):
        WeightReader(source, torch.float32, CPU).kv_scales(["a", "b"])


def test_nothing_is_taken_twice():
    reader = WeightReader(MappingSource({"a.weight": torch.ones(2)}), torch.float32, CPU)
    reader.take("a.weight", (2,))
    with pytest.raises(ModelError, match="taken once"):
        reader.take("a.weight", (2,))


def test_codes_without_scales_are_refused():
    reader = WeightReader(MappingSource({"a.weight": torch.ones(2, dtype=torch.uint8)}), torch.float32, CPU)
    with pytest.raises(ModelError, match="a.weight: expected a float tensor"):
        reader.take("a.weight", (2,))


@pytest.mark.parametrize("value", [None, 0.0, float("inf")])
def test_a_global_input_scale_is_a_positive_number(value):
    scales = {} if value is None else {"a": torch.tensor([value])}
    reader = WeightReader(MappingSource({}, input_encode_scales=scales), torch.float32, CPU)
    with pytest.raises(ModelError, match="global scale of the input of a"):
        reader.input_encode_scale("a")


def test_weights_that_are_no_numbers_are_refused(tiny):
    config, tensors = tiny
    for name, tensor in tensors.items():
        for value in (math.nan, math.inf):
            odd = tensor.clone()
            odd.view(-1)[-1] = value
            with pytest.raises(WeightValueError, match=name):
                build(config, {**tensors, name: odd})


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_scales_and_codes_that_no_quantizer_writes_are_refused(tiny, value):
    config, tensors = tiny
    linear = "model.language_model.layers.0.mlp.down_proj"
    tensors = dict(tensors)
    weight = tensors.pop(f"{linear}.weight")
    odd = fp8_weight(weight)
    odd.decode_scale[-1] = value
    quantized = {linear: odd}
    with pytest.raises(WeightValueError, match=linear):
        build(config, tensors, quantized=quantized)
    odd = fp8_weight(weight)
    odd.codes.view(torch.uint8)[0, 0] = 0xFF
    with pytest.raises(WeightValueError, match=linear):
        build(config, tensors, quantized={linear: odd})
    # A block scale in E4M3 knows no infinity.
    for part in ("encode_scale", "block_scale")[: 1 + (value != math.inf)]:
        packed = nvfp4.quantize(weight.bfloat16(), global_encode_scale(weight.abs().amax()))
        getattr(packed, part).view(-1)[0] = value
        with pytest.raises(WeightValueError, match=linear):
            build(config, tensors, quantized={linear: packed}, input_encode_scales={linear: torch.ones(1)})
