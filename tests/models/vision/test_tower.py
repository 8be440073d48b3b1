"""Both towers against transformers, and a packed batch against its images one by one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ocrquant.errors import ShapeError

GRIDS = [(1, 4, 6), (1, 8, 10), (2, 2, 4), (1, 8, 10)]


def one_by_one(pair, pixels, grids):
    counts = [frames * rows * columns for frames, rows, columns in grids]
    parts = pixels.split(counts)
    return torch.cat([pair.tower.encode(part, [grid]) for part, grid in zip(parts, grids, strict=True)])


def exact_rotation(q, k, cos, sin):
    """What transformers computes, without its roundings to float32 in a float64 model."""

    def rotate(x):
        lo, hi = x.chunk(2, -1)
        return x * cos.unsqueeze(-2) + torch.cat([-hi, lo], -1) * sin.unsqueeze(-2)

    return rotate(q), rotate(k)


def exact_angles(module, x, position_ids):
    """Cosines of its float32 angles, worked out in double and rounded once."""
    angles = (position_ids[..., None].float() * module.inv_freq.float()).double()
    return [module.recomposition_frequencies(f(angles).float()).double() for f in (torch.cos, torch.sin)]


@pytest.fixture
def exact_transformers(monkeypatch):
    """transformers without float32 inside a float64 tower, so that only the order of sums may differ."""
    from transformers.models.paddleocr_vl import modeling_paddleocr_vl as paddle
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    for module, rotary in (
        (paddle, paddle.PaddleOCRVisionRotaryEmbedding),
        (qwen, qwen.Qwen3_5VisionRotaryEmbedding),
    ):
        monkeypatch.setattr(module, "apply_rotary_pos_emb_vision", exact_rotation)
        monkeypatch.setattr(rotary, "forward", exact_angles)


def test_equals_transformers_in_fp64(pair64, exact_transformers):
    pixels = pair64.pixels(GRIDS)
    found = pair64.tower.encode(pixels, GRIDS)
    expected = pair64.expected(pixels, GRIDS)
    assert expected.abs().mean() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_equals_transformers_in_fp32(pair32):
    pixels = pair32.pixels(GRIDS)
    found = pair32.tower.encode(pixels, GRIDS)
    torch.testing.assert_close(found, pair32.expected(pixels, GRIDS), rtol=1e-5, atol=2e-5)


def test_packed_equals_one_by_one_in_fp64(pair64):
    pixels = pair64.pixels(GRIDS)
    found = pair64.tower.encode(pixels, GRIDS)
    torch.testing.assert_close(found, one_by_one(pair64, pixels, GRIDS), rtol=0, atol=1e-12)


def test_images_do_not_see_each_other(pair32):
    grids = [(1, 4, 6), (1, 8, 10)]
    pixels = pair32.pixels(grids)
    changed = pixels.clone()
    changed[:24] += 1
    before, after = pair32.tower.encode(pixels, grids), pair32.tower.encode(changed, grids)
    assert torch.equal(before[6:], after[6:])
    assert not torch.isclose(before[:6], after[:6]).any(1).all()


def test_patches_of_a_token_lie_together_in_every_image(pair32):
    """A packed batch is gathered as its images are, and as transformers' projector does, bit for bit."""
    if pair32.family == "qwen3_5":
        assert pair32.tower.tables.batch(GRIDS).order is None
        return
    tables = pair32.tower.tables
    features = torch.randn(tables.batch(GRIDS).cos.shape[0], 5)
    found = features.index_select(0, tables.batch(GRIDS).order).view(-1, 20)
    expected = []
    for part, (frames, rows, columns) in zip(features.split([24, 80, 16, 80]), GRIDS, strict=True):
        blocks = part.reshape(frames, rows // 2, 2, columns // 2, 2, 5).transpose(2, 3)
        expected.append(blocks.reshape(-1, 20))
    assert torch.equal(found, torch.cat(expected))


def test_patch_embedding_is_the_convolution(pair64):
    module = (
        pair64.theirs.visual.patch_embed.proj
        if pair64.family == "qwen3_5"
        else pair64.theirs.visual.vision_model.embeddings.patch_embedding
    )
    pixels = pair64.pixels([(1, 2, 2)])
    patch = pixels.view(-1, *module.weight.shape[1:])
    convolution = F.conv3d if patch.ndim == 5 else F.conv2d
    expected = convolution(patch, module.weight, module.bias).flatten(1)
    found = pair64.tower.encoder.patch_embedding(pixels, torch.empty_like(expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_pixels_of_another_grid_are_refused(pair32):
    with pytest.raises(ShapeError, match="pixels"):
        pair32.tower.encode(pair32.pixels([(1, 4, 6)]), [(1, 4, 8)])


@pytest.mark.parametrize("grids", [[], [(1, 3, 4)], [(0, 2, 2)], [(1, 2, 5)]])
def test_impossible_grids_are_refused(pair32, grids):
    with pytest.raises(ShapeError):
        pair32.tower.encode(pair32.pixels(grids), grids)


def test_memory_is_that_of_the_weights(pair32):
    parameters = [
        tensor
        for name, tensor in pair32.theirs.named_parameters()
        if name.startswith(("visual.", "projector."))
    ]
    stored = sum(tensor.numel() * tensor.element_size() for tensor in parameters)
    assert stored <= pair32.tower.num_bytes <= 1.1 * stored  # rows of small weights are padded
