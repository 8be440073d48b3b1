import dataclasses

import pytest
import torch

from ocrquant.formats import Precision
from ocrquant.formats.weights import weight_tensors
from ocrquant.rounding import (
    Methods,
    Norm,
    Rows,
    layer,
    nearest_scales,
    round_layer,
    round_to_nearest,
)

ALL = Methods(smoothing=True, scale_search=True, gptq=True)
NONE = Methods(smoothing=False, scale_search=False, gptq=False)
SMOOTHING = Methods(smoothing=True, scale_search=False, gptq=False)
SEARCH = Methods(smoothing=False, scale_search=True, gptq=False)
GPTQ = Methods(smoothing=False, scale_search=False, gptq=True)
BOTH = [Precision.FP8, Precision.NVFP4]
LOUD = (3, 20)


@pytest.fixture
def weights(random_weight):
    return {"qkv": [random_weight(32, 64, 1), random_weight(16, 64, 2)], "z": [random_weight(48, 64, 3)]}


@pytest.fixture
def norm():
    return Norm(torch.rand(64, generator=torch.Generator().manual_seed(5)).bfloat16(), offset=True)


def formats(weights, *precisions):
    return {name: precisions or BOTH for name in weights}


def equal(left, right):
    pairs = [(weight_tensors(a), weight_tensors(b)) for a, b in zip(left, right, strict=True)]
    return all(
        torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)) for a, b in pairs for name in a
    )


def test_every_step_lowers_the_error(weights, layer_input):
    found = round_layer(weights, formats(weights), layer_input(64), ALL)
    assert set(found.groups) == {(g, p) for g in weights for p in BOTH}
    for group in found.groups.values():
        assert [step.name for step in group.steps] == ["scale_search", "gptq"]
        assert all(step.accepted and step.error_after < step.error_before for step in group.steps)
        assert group.steps[0].error_after == group.steps[1].error_before
        assert group.error == group.steps[1].error_after
    assert found.smoothing is None


def test_nothing_asked_is_rounding_to_nearest(weights, layer_input):
    found = round_layer(weights, formats(weights), layer_input(64), NONE)
    for (name, precision), group in found.groups.items():
        assert group.steps == []
        assert group.error > 0
        assert equal(group.weights, round_to_nearest(weights[name], precision).weights)


def test_smoothing_tames_loud_channels(weights, norm, layer_input):
    given = layer_input(64, loud=LOUD)
    found = round_layer(weights, formats(weights, Precision.NVFP4), given, SMOOTHING, norm=norm)
    assert found.smoothing is not None
    assert found.exponent > 0
    for group in found.groups.values():
        [step] = group.steps
        assert step.name == "smoothing"
        assert step.accepted
        assert step.error_after < 0.8 * step.error_before
    assert torch.equal(found.channel_amax, given.channel_amax / found.smoothing.vector)
    # The stored weights contain the vector.
    scaled = [w * found.smoothing.vector for w in weights["z"]]
    expected = round_to_nearest(scaled, Precision.NVFP4).weights
    assert equal(found.groups["z", Precision.NVFP4].weights, expected)
    before, after = norm.weight.double() + 1, found.smoothing.norm_weight.double() + 1
    assert torch.allclose(after * found.smoothing.vector.double(), before, rtol=2.0**-23)


def test_no_norm_no_smoothing(weights, layer_input):
    found = round_layer(weights, formats(weights), layer_input(64, loud=LOUD), ALL, norm=None)
    assert found.smoothing is None
    assert all(step.name != "smoothing" for group in found.groups.values() for step in group.steps)


def test_planted_bad_hessian_is_rejected(weights, layer_input, correlated_rows):
    good = layer_input(64)
    strange = torch.randn(64, 64, generator=torch.Generator().manual_seed(7))
    bad = dataclasses.replace(good, hessian=strange @ strange.T + 1000 * torch.outer(strange[0], strange[0]))
    found = round_layer(
        weights, formats(weights), bad, Methods(smoothing=False, scale_search=False, gptq=True)
    )
    for (name, precision), group in found.groups.items():
        [step] = group.steps
        assert not step.accepted
        assert step.error_after > step.error_before == group.error
        assert equal(group.weights, round_to_nearest(weights[name], precision).weights)


def test_planted_bad_importance_is_rejected(weights, layer_input):
    good = layer_input(64)
    # Only a channel that hardly counts on the held-back rows seems to matter.
    hessian = torch.zeros(64, 64)
    hessian[5, 5] = 1.0
    held_back = good.held_back.values.clone()
    held_back[:, 5] = 0.0
    bad = dataclasses.replace(good, hessian=hessian, held_back=Rows(held_back, good.held_back.weights))
    found = round_layer(
        weights, formats(weights), bad, Methods(smoothing=False, scale_search=True, gptq=False)
    )
    for (name, precision), group in found.groups.items():
        [step] = group.steps
        assert not step.accepted
        assert equal(group.weights, round_to_nearest(weights[name], precision).weights)


def test_gptq_works_on_nearest_scales_where_searched_ones_were_rejected(weights, layer_input, monkeypatch):
    def worse(weights, precision, second_moment):
        near = nearest_scales(weights, precision)
        return [dataclasses.replace(scales, decode_scale=scales.decode_scale / 4.0) for scales in near]

    monkeypatch.setattr(layer, "searched_scales", worse)
    given = formats(weights, Precision.FP8)
    found = round_layer(weights, given, layer_input(64), ALL)
    for (name, _), group in found.groups.items():
        assert [step.accepted for step in group.steps] == [False, True]
        for weight, rounded in zip(weights[name], group.weights, strict=True):
            [near] = nearest_scales([weight], Precision.FP8)
            assert torch.equal(rounded.decode_scale, near.decode_scale)


def test_smoothing_that_hurts_on_held_back_pages_is_rejected(weights, norm, layer_input, correlated_rows):
    # Loud channels on the pages to fit on, quiet ones on the others.
    given = layer_input(64, fit=correlated_rows(512, 64, 1, LOUD), held_back=correlated_rows(512, 64, 2))
    plain = round_layer(weights, formats(weights), given, ALL, norm=None)
    found = round_layer(weights, formats(weights), given, ALL, norm=norm)
    assert found.smoothing is None
    assert found.exponent > 0
    assert torch.equal(found.channel_amax, given.channel_amax)
    for key, group in found.groups.items():
        assert [step.name for step in group.steps] == ["smoothing", "scale_search", "gptq"]
        assert not group.steps[0].accepted
        assert equal(group.weights, plain.groups[key].weights)
    assert any(group.steps[0].error_after > group.steps[0].error_before for group in found.groups.values())


def test_dead_input_is_safe(weights, norm, layer_input):
    given = layer_input(64, fit=torch.zeros(32, 64), held_back=torch.zeros(32, 64))
    found = round_layer(weights, formats(weights), given, ALL, norm=norm)
    for (name, precision), group in found.groups.items():
        assert group.error == 0.0
        assert equal(group.weights, round_to_nearest(weights[name], precision).weights)


def test_dead_channel_and_zero_row_are_safe(weights, norm, layer_input, correlated_rows):
    rows = [correlated_rows(256, 64, seed) for seed in (1, 2)]
    for part in rows:
        part[:, 9] = 0.0
    weights["z"][0][4] = 0.0
    found = round_layer(
        weights, formats(weights), layer_input(64, fit=rows[0], held_back=rows[1]), ALL, norm=norm
    )
    for group in found.groups.values():
        assert all(bool(torch.isfinite(weight.dequantize()).all()) for weight in group.weights)
    for precision in BOTH:
        assert bool((found.groups["z", precision].weights[0].dequantize()[4] == 0).all())


def test_repeat_gives_the_same_bytes(weights, norm, layer_input):
    first, second = (
        round_layer(weights, formats(weights), layer_input(64, loud=LOUD), ALL, norm=norm) for _ in range(2)
    )
    assert all(equal(first.groups[key].weights, second.groups[key].weights) for key in first.groups)
    assert [g.steps for g in first.groups.values()] == [g.steps for g in second.groups.values()]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(0.10, 0.05)], True),
        ([(0.10, 0.0995)], False),  # half a hundredth
        ([(0.10, 0.05), (0.001, 0.00101)], False),  # one gets worse
        ([(0.10, 0.09), (0.001, 0.001)], True),  # a twentieth on the geometric mean
        ([(0.0, 0.0), (0.1, 0.1)], False),
        ([(0.1, 0.0)], True),
        ([], False),
    ],
)
def test_smoothing_is_kept_only_for_a_real_gain(pairs, expected):
    assert layer._is_worth_it(pairs) is expected
