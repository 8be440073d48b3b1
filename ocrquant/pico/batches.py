"""From samples to padded tensors: token ids, patches, positions, and the targets of the three losses.

Knows pico's token layout (user, image, prompt, assistant, text, end) and M-RoPE positions; knows nothing of
weights. Rows are padded on the right; padding never reaches a loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from ocrquant.pico.geometry import (
    COLUMN_PIXELS,
    COLUMNS_PER_TOKEN,
    MERGE,
    PATCH_PIXELS,
    POSITION_GRID,
    TOKEN_PIXELS,
)
from ocrquant.pico.samples import Sample
from ocrquant.pico.tokenizer import PROMPTS

IGNORE = -100
BLANK = 0
MIN_ROW_OVERLAP = 0.3
TOKENS_AROUND_IMAGE = 5


@dataclass(slots=True, kw_only=True)
class Batch:
    """Tensors of one step, padded on the right.

    B rows, T text and image positions, N patches, M = N / 4 merged tokens.

    ids, labels int64 [B, T]; positions int64 [3, B, T]; image_slots bool [B, T]; patches fp32 [B, N, 100];
    patch_mask bool [B, N]; patch_rows, patch_columns int64 [B, N]; grid_index int64 and grid_weight fp32 [B,
    N, 4]; columns int64 [B, M, 5] (character id per 4-pixel column, 0 = none, -100 = not judged); place bool
    [B, T, M]: image tokens that hold the character which position t predicts.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    image_slots: torch.Tensor
    patches: torch.Tensor
    patch_mask: torch.Tensor
    patch_rows: torch.Tensor
    patch_columns: torch.Tensor
    grid_index: torch.Tensor
    grid_weight: torch.Tensor
    columns: torch.Tensor
    place: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        moved = {
            field.name: getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)
        }
        return Batch(**moved)


@lru_cache(maxsize=4096)
def grid_tables(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For a grid of patches in merge order.

    Row [N], column [N], position-table indices [N, 4] and weights [N, 4].
    """
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    order = [
        axis.reshape(rows // MERGE, MERGE, columns // MERGE, MERGE).transpose(0, 2, 1, 3).reshape(-1)
        for axis in (row, column)
    ]
    indices, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, rows, columns]]),
        num_grid_per_side=POSITION_GRID,
        mode="bilinear",
        align_corners=True,
        spatial_merge_size=MERGE,
        kwargs={},
    )
    return order[0], order[1], indices.numpy(), weights.numpy()


def patchify(grey: np.ndarray) -> np.ndarray:
    """uint8 [H, W] -> fp32 [N, 100] in [-1, 1], patches in merge order."""
    height, width = grey.shape
    cells = grey.reshape(
        height // TOKEN_PIXELS, MERGE, PATCH_PIXELS, width // TOKEN_PIXELS, MERGE, PATCH_PIXELS
    )
    flat = cells.transpose(0, 3, 1, 4, 2, 5).reshape(-1, PATCH_PIXELS * PATCH_PIXELS)
    return flat.astype(np.float32) / np.float32(127.5) - np.float32(1.0)


def _column_targets(sample: Sample, char_ids: np.ndarray) -> np.ndarray:
    """int64 [M, 5].

    Which character has its centre in each 4-pixel column; lines at other heights are not judged.
    """
    rows, columns = sample.grey.shape[0] // TOKEN_PIXELS, sample.grey.shape[1] // TOKEN_PIXELS
    target = np.full((rows, columns * COLUMNS_PER_TOKEN), IGNORE, dtype=np.int64)
    known = ~np.isnan(sample.char_x)
    if known.any():
        row = np.clip(sample.line_y[known].mean(axis=1) // TOKEN_PIXELS, 0, rows - 1).astype(int)
        column = np.clip(sample.char_x[known] // COLUMN_PIXELS, 0, target.shape[1] - 1).astype(int)
        solid = np.array([not c.isspace() for c in sample.text], dtype=bool)[known]
        target[np.unique(row)] = BLANK
        target[row[solid], column[solid]] = char_ids[known][solid]
    return target.reshape(-1, COLUMNS_PER_TOKEN)


def _place_targets(sample: Sample) -> np.ndarray:
    """Bool [n, M]: image tokens under each character of the text."""
    rows, columns = sample.grey.shape[0] // TOKEN_PIXELS, sample.grey.shape[1] // TOKEN_PIXELS
    top, bottom = sample.line_y[:, :1], sample.line_y[:, 1:]
    edge = np.arange(rows, dtype=np.float32)[None, :] * TOKEN_PIXELS
    overlap = np.minimum(bottom, edge + TOKEN_PIXELS) - np.maximum(top, edge)
    in_row = overlap >= MIN_ROW_OVERLAP * np.minimum(bottom - top, TOKEN_PIXELS)
    known = ~np.isnan(sample.char_x)
    column = np.where(known, np.clip(np.nan_to_num(sample.char_x) // TOKEN_PIXELS, 0, columns - 1), -1)
    in_column = column[:, None] == np.arange(columns)[None, :]
    under: np.ndarray = in_row[:, :, None] & in_column[:, None, :]
    return under.reshape(len(sample.text), -1)


def sequence_length(sample: Sample) -> int:
    """Positions that a sample takes in the decoder."""
    return sample.grey.size // TOKEN_PIXELS**2 + TOKENS_AROUND_IMAGE + len(sample.text) + 1


class Collator:
    """Makes a `Batch` of samples; `corrupt` is the share of input characters replaced by random ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator) -> None:
        """Look up the ids of the control tokens once."""
        lookup = tokenizer.get_vocab()
        self.char_id = {token: index for token, index in lookup.items() if len(token) == 1}
        self.unknown = lookup["<|unk|>"]
        self.control = {
            name: lookup[f"<|{name}|>"] for name in ("pad", "end", "user", "assistant", "image_pad")
        }
        self.vision = (lookup["<|vision_start|>"], lookup["<|vision_end|>"])
        self.prompt = {kind: lookup[prompt] for kind, prompt in PROMPTS.items()}
        self.rng = rng
        self.char_ids_sorted = np.array(sorted(self.char_id.values()))

    def encode(self, text: str) -> np.ndarray:
        """Character ids, int64 [n]."""
        return np.array([self.char_id.get(character, self.unknown) for character in text], dtype=np.int64)

    def __call__(self, samples: list[Sample], corrupt: float = 0.0) -> Batch:
        """Collate; see `Batch` for the shapes."""
        size, length = len(samples), max(map(sequence_length, samples))
        tokens = [sample.grey.size // TOKEN_PIXELS**2 for sample in samples]
        merged = max(tokens)
        ids = np.full((size, length), self.control["pad"], dtype=np.int64)
        labels = np.full((size, length), IGNORE, dtype=np.int64)
        positions = np.zeros((3, size, length), dtype=np.int64)
        columns = np.full((size, merged, COLUMNS_PER_TOKEN), IGNORE, dtype=np.int64)
        place = np.zeros((size, length, merged), dtype=bool)
        patches = np.zeros((size, merged * MERGE**2, PATCH_PIXELS**2), dtype=np.float32)
        grid = np.zeros((2, size, merged * MERGE**2), dtype=np.int64)
        grid_index = np.zeros((size, merged * MERGE**2, 4), dtype=np.int64)
        grid_weight = np.zeros((size, merged * MERGE**2, 4), dtype=np.float32)
        for b, (sample, count) in enumerate(zip(samples, tokens, strict=True)):
            rows, cols = sample.grey.shape[0] // PATCH_PIXELS, sample.grey.shape[1] // PATCH_PIXELS
            n = count * MERGE**2
            grid[0, b, :n], grid[1, b, :n], grid_index[b, :n], grid_weight[b, :n] = grid_tables(rows, cols)
            patches[b, :n] = patchify(sample.grey)
            text = self.encode(sample.text)
            answer = count + TOKENS_AROUND_IMAGE
            head = [
                self.control["user"],
                self.vision[0],
                *[self.control["image_pad"]] * count,
                self.vision[1],
            ]
            row = np.array(
                [*head, self.prompt[sample.kind], self.control["assistant"], *text, self.control["end"]]
            )
            ids[b, : len(row)] = row
            labels[b, answer - 1 : len(row) - 1] = row[answer:]
            positions[:, b, : len(row)] = mrope_positions(rows // MERGE, cols // MERGE, len(row))
            columns[b, :count] = _column_targets(sample, text)
            place[b, answer - 1 : answer - 1 + len(text), :count] = _place_targets(sample)
            if corrupt:
                hit = np.flatnonzero(self.rng.random(len(text)) < corrupt)
                ids[b, answer + hit] = self.rng.choice(self.char_ids_sorted, len(hit))
        slots = ids == self.control["image_pad"]
        mask = np.arange(merged * MERGE**2)[None, :] < np.array(tokens)[:, None] * MERGE**2
        arrays = {
            "ids": ids, "labels": labels, "positions": positions, "image_slots": slots, "patches": patches,
            "patch_mask": mask, "patch_rows": grid[0], "patch_columns": grid[1], "grid_index": grid_index,
            "grid_weight": grid_weight, "columns": columns, "place": place,
        }  # fmt: skip
        return Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def mrope_positions(rows: int, columns: int, length: int) -> np.ndarray:
    """M-RoPE positions int64 [3, length] of pico's layout: two tokens, a grid of image tokens, then text."""
    count, start = rows * columns, 2
    positions = np.empty((3, length), dtype=np.int64)
    positions[:, :start] = np.arange(start)
    row, column = np.divmod(np.arange(count), columns)
    positions[:, start : start + count] = np.stack([np.zeros_like(row), row, column]) + start
    positions[:, start + count :] = np.arange(length - start - count) + start + max(rows, columns)
    return positions


def batches(
    samples: Iterator[Sample], collate: Collator, *, positions: int, pool: int, corrupt: float
) -> Iterator[Batch]:
    """Batches of at most `positions` padded positions, from pools of `pool` samples sorted by length."""
    while True:
        group = sorted((next(samples) for _ in range(pool)), key=sequence_length)
        bins: list[list[Sample]] = [[]]
        for sample in group:
            if bins[-1] and sequence_length(sample) * (len(bins[-1]) + 1) > positions:
                bins.append([])
            bins[-1].append(sample)
        for index in collate.rng.permutation(len(bins)):
            yield collate(bins[int(index)], corrupt)
