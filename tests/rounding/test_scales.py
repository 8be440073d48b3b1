import pytest
import torch

from ocrquant.errors import ShapeError, WeightValueError
from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.rounding import nearest_scales, scales, searched_scales, stored

FORMATS = [Precision.FP8, Precision.NVFP4]


def weighted_error(weight, found, importance):
    return ((stored(weight, found).dequantize() - weight).square() * importance).sum(dim=1)


def test_nearest_is_the_formats_own(random_weight):
    weight = random_weight(8, 32)
    [fp8_scales] = nearest_scales([weight], Precision.FP8)
    assert torch.equal(fp8_scales.decode_scale, fp8.weight_decode_scale(weight, "channel"))
    assert torch.equal(
        stored(weight, fp8_scales).codes.view(torch.uint8),
        fp8.encode(weight, fp8.weight_decode_scale(weight, "channel")).view(torch.uint8),
    )
    [nvfp4_scales] = nearest_scales([weight], Precision.NVFP4)
    shared = nvfp4.exchangeable_scale(nvfp4.global_encode_scale(weight.abs().amax()))
    ours, theirs = stored(weight, nvfp4_scales), nvfp4.quantize(weight, shared)
    assert torch.equal(ours.packed, theirs.packed)
    assert torch.equal(ours.block_scale.view(torch.uint8), theirs.block_scale.view(torch.uint8))
    assert torch.equal(ours.encode_scale, theirs.encode_scale)


@pytest.mark.parametrize("precision", FORMATS)
def test_search_lowers_the_weighted_error(precision, random_weight, correlated_rows):
    weight = random_weight(32, 64)
    importance = correlated_rows(256, 64, loud=(3, 17)).square().mean(0)
    [near], [found] = nearest_scales([weight], precision), searched_scales([weight], precision, importance)
    before, after = (weighted_error(weight, s, importance) for s in (near, found))
    assert after.sum() < 0.9 * before.sum()


def test_no_channel_of_fp8_gets_worse(random_weight):
    weight, importance = random_weight(32, 64), torch.rand(64)
    [near], [found] = (
        nearest_scales([weight], Precision.FP8),
        searched_scales([weight], Precision.FP8, importance),
    )
    before, after = (weighted_error(weight, s, importance) for s in (near, found))
    assert bool((after <= before * (1 + 1e-6)).all())


def test_importance_matters(random_weight):
    weight = random_weight(16, 32)
    importance = torch.ones(32)
    importance[5] = 1e4
    for precision in FORMATS:
        [plain] = searched_scales([weight], precision, torch.ones(32))
        [aware] = searched_scales([weight], precision, importance)
        assert (
            weighted_error(weight, aware, importance).sum() < weighted_error(weight, plain, importance).sum()
        )


@pytest.mark.parametrize("precision", FORMATS)
def test_weights_on_the_grid_keep_their_nearest_scales(precision, random_weight):
    [near] = nearest_scales([random_weight(8, 32)], precision)
    weight = stored(random_weight(8, 32), near).dequantize()
    [near] = nearest_scales([weight], precision)
    [found] = searched_scales([weight], precision, torch.ones(32))
    assert weighted_error(weight, found, torch.ones(32)).sum() == 0
    if near.decode_scale is not None:
        assert torch.equal(found.decode_scale, near.decode_scale)


def test_members_share_the_global_scale(random_weight):
    weights = [random_weight(8, 32, 1), 100.0 * random_weight(24, 32, 2)]
    for found in (
        nearest_scales(weights, Precision.NVFP4),
        searched_scales(weights, Precision.NVFP4, torch.ones(32)),
    ):
        assert torch.equal(found[0].encode_scale, found[1].encode_scale)


@pytest.mark.parametrize("precision", FORMATS)
def test_pieces_do_not_change_the_search(precision, monkeypatch, random_weight):
    weight, importance = random_weight(33, 64), torch.rand(64)
    [whole] = searched_scales([weight], precision, importance)
    monkeypatch.setattr(scales, "_PIECE_ELEMENTS", 5 * 64)
    [pieces] = searched_scales([weight], precision, importance)
    assert torch.equal(stored(weight, whole).dequantize(), stored(weight, pieces).dequantize())


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("importance", [torch.zeros(32), torch.ones(32), torch.tensor([1.0, 0.0] * 16)])
def test_dead_rows_blocks_and_channels_are_safe(precision, importance, random_weight):
    weight = random_weight(8, 32)
    weight[2] = 0.0
    weight[3, :16] = 0.0
    weight[4] = 1e-38
    for found in (
        nearest_scales([weight], precision)[0],
        searched_scales([weight], precision, importance)[0],
    ):
        quantized = stored(weight, found)
        restored = quantized.dequantize()
        assert bool(torch.isfinite(restored).all())
        assert bool((restored[2] == 0).all())
        assert bool((restored[3, :16] == 0).all())
        scale = quantized.decode_scale if precision is Precision.FP8 else quantized.block_scale.float()
        assert bool((scale > 0).all())
        assert bool(torch.isfinite(scale).all())


@pytest.mark.parametrize("precision", FORMATS)
def test_all_zero_weight(precision):
    [found] = searched_scales([torch.zeros(4, 16)], precision, torch.ones(16))
    assert bool((stored(torch.zeros(4, 16), found).dequantize() == 0).all())


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_broken_weights_are_refused(precision, value, random_weight):
    weight = random_weight(4, 16)
    weight[1, 2] = value
    with pytest.raises(WeightValueError):
        searched_scales([weight], precision, torch.ones(16))


def test_width_that_fits_no_block_is_refused(random_weight):
    with pytest.raises(ShapeError):
        searched_scales([random_weight(4, 24)], Precision.NVFP4, torch.ones(24))


@pytest.mark.parametrize("precision", FORMATS)
def test_steps_are_what_elements_are_divided_by(precision, random_weight):
    weight = random_weight(4, 48)
    [found] = searched_scales([weight], precision, torch.ones(48))
    quantized = stored(weight, found)
    if precision is Precision.FP8:
        expected = quantized.decode_scale.expand(4, 48)
    else:
        expected = (quantized.block_scale.float() / quantized.encode_scale).repeat_interleave(16, dim=1)
    assert torch.equal(found.steps().expand(4, 48), expected)
    assert torch.equal(found.steps(slice(16, 48)).expand(4, 32), expected[:, 16:])
