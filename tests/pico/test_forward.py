"""The training forward pass against `transformers`, in fp32, and what the losses look at."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ocrquant.pico import batches, forward, geometry, objective, tokenizer
from ocrquant.pico.samples import Sample

# Sums of a few hundred fp32 products in another order.
TOLERANCE = 2e-5


def sample(width: int, text: str, height: int = 20) -> Sample:
    rng = np.random.default_rng(width)
    grey = rng.integers(0, 256, (height, width), dtype=np.uint8)
    places = np.linspace(3, width - 3, len(text), dtype=np.float32)
    lines = np.tile(np.array([[0, height]], dtype=np.float32), (len(text), 1))
    return Sample(grey=grey, text=text, kind="line", char_x=places, line_y=lines)


@pytest.fixture(scope="module")
def words():
    return tokenizer.build_tokenizer(tokenizer.alphabet([]))


@pytest.fixture(scope="module")
def model(words):
    torch.manual_seed(0)
    model = geometry.build_model({t: words.convert_tokens_to_ids(t) for t in tokenizer.SPECIAL})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.fixture(scope="module")
def batch(words):
    collate = batches.Collator(words, np.random.default_rng(0))
    return collate([sample(60, "abc de"), sample(160, "Hello, world!"), sample(100, "x\ny", height=40)])


@torch.no_grad()
def test_logits_equal_those_of_transformers_row_by_row(model, batch):
    logits = model.lm_head(forward.decode(model, batch, forward.vision_tokens(model, batch))[0])
    for i in range(3):
        num_patches, length = int(batch.patch_mask[i].sum()), int((batch.ids[i] != 0).sum())
        pixels = (
            batch.patches[i, :num_patches].view(-1, 1, 1, 100).expand(-1, 3, 2, 100).reshape(num_patches, 600)
        )
        rows = int(batch.patch_rows[i, :num_patches].max()) + 1
        columns = int(batch.patch_columns[i, :num_patches].max()) + 1
        wanted = model(
            input_ids=batch.ids[i : i + 1, :length],
            pixel_values=pixels,
            image_grid_thw=torch.tensor([[1, rows, columns]]),
            mm_token_type_ids=batch.image_slots[i : i + 1, :length].int(),
        ).logits[0]
        assert (logits[i, :length] - wanted).abs().max() < TOLERANCE


@torch.no_grad()
def test_patches_equal_those_of_the_image_processor():
    from PIL import Image

    grey = np.random.default_rng(1).integers(0, 256, (40, 60), dtype=np.uint8)
    wanted = geometry.build_image_processor()(
        images=[Image.fromarray(grey).convert("RGB")], return_tensors="pt"
    )
    assert wanted["image_grid_thw"].tolist() == [[1, 4, 6]]
    patches = wanted["pixel_values"].view(-1, 3, 2, 100)
    assert torch.allclose(patches[:, 0, 0], torch.from_numpy(batches.patchify(grey)), atol=1e-6)


def test_labels_are_the_next_characters_and_the_end(words, batch):
    answers = [
        [words.convert_ids_to_tokens(i) for i in row[row != batches.IGNORE].tolist()] for row in batch.labels
    ]
    assert answers[0] == [*"abc de", "<|end|>"]
    assert answers[2] == ["x", "\n", "y", "<|end|>"]


def test_place_targets_lie_under_their_characters(batch):
    rows = batch.place[1].nonzero().tolist()
    first = rows[0][0]
    columns = [column for position, column in rows if position == first]
    assert columns == [0]
    last = max(position for position, _ in rows)
    assert [column for position, column in rows if position == last] == [7]


def test_padding_reaches_no_loss(model, words):
    collate = batches.Collator(words, np.random.default_rng(0))
    head = objective.ColumnHead()
    alone = objective.losses(model, head, collate([sample(60, "abc de")]), with_text=True)
    padded = collate([sample(60, "abc de"), sample(400, "a much longer line of text")])
    padded.labels[1] = batches.IGNORE
    padded.columns[1] = batches.IGNORE
    padded.place[1] = False
    together = objective.losses(model, head, padded, with_text=True)
    for name in ("text", "place", "column"):
        assert abs(float(getattr(alone, name)) - float(getattr(together, name))) < 1e-4


def test_parameters_stay_under_twelve_million(model):
    assert sum(p.numel() for p in model.parameters()) <= 12_000_000
    for size in (
        geometry.TEXT["hidden_size"],
        geometry.TEXT["intermediate_size"],
        geometry.VISION["intermediate_size"],
    ):
        assert size % 64 == 0
