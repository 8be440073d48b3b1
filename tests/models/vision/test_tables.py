"""Tables of a batch: joined from those of its grids, made once, without a device being read."""

from __future__ import annotations

import pytest
import torch
from transformers import vision_utils

from ocrquant.models.vision.reading import axial_frequencies
from ocrquant.models.vision.tables import GridTables

GRIDS = [(1, 4, 6), (1, 8, 10), (2, 2, 4), (1, 8, 10)]


def tables(dtype=torch.bfloat16, in_blocks=True, **bounds):
    learned = torch.randn(49, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    return GridTables(learned, axial_frequencies(8, 10000.0), 2, in_blocks=in_blocks, **bounds), learned


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("in_blocks", [True, False])
def test_learned_positions_equal_transformers_bit_for_bit(dtype, in_blocks):
    made, learned = tables(dtype, in_blocks)
    index, weight = vision_utils.get_vision_interpolation_indices_and_weights(
        torch.tensor(GRIDS), 7, "bilinear", True, 2 if in_blocks else 1
    )
    expected = (learned[index] * weight[:, :, None]).sum(1).to(dtype)
    assert torch.equal(made.batch(GRIDS).learned, expected)


def test_batch_is_its_images_joined():
    made, _ = tables(in_blocks=False)
    batch = made.batch(GRIDS)
    alone = [tables(in_blocks=False)[0].batch([grid]) for grid in GRIDS]
    for name in ("learned", "cos", "sin"):
        assert torch.equal(getattr(batch, name), torch.cat([getattr(one, name) for one in alone]))
    offsets = [0, 24, 104, 120]
    orders = [one.order + offset for one, offset in zip(alone, offsets, strict=True)]
    assert torch.equal(batch.order, torch.cat(orders))
    assert sorted(batch.order.tolist()) == list(range(200))
    assert batch.num_tokens == 50


def test_a_size_is_made_once():
    made, _ = tables()
    first = made.batch(GRIDS)
    assert (made.counts.misses, made.counts.hits) == (3, 2)  # two frames of one image, one size twice
    again = made.batch([GRIDS[0]])
    assert made.counts.misses == 3
    assert torch.equal(first.learned[:24], again.learned)


def test_number_of_operations_does_not_depend_on_the_number_of_images():
    def operations(grids):
        made, _ = tables(in_blocks=False)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            made.batch(grids)
        kept = {"aten::index", "aten::mul", "aten::sum", "aten::cat"}
        return sum(event.count for event in found.key_averages() if event.key in kept)

    few = operations([(1, 2, 2), (1, 2, 4)])
    assert operations([(1, 2, 2 * n) for n in range(1, 20)]) == few
    assert few > 0


def test_bounds():
    made, _ = tables(max_entries=4, max_bytes=4000)
    for n in range(1, 30):
        batch = made.batch([(1, 2, 2 * n), (1, 4, 2 * n)])
        assert batch.learned.shape[0] == 12 * n
        assert made.counts.entries <= 4
        assert made.counts.num_bytes <= 4000
    assert made.counts.evictions > 0
