"""How weights lie in memory for the native linears: panels of 16 output rows, the input dimension inside.

A panel holds its 16 rows interleaved, so that a vector register holds the same input columns of 16 outputs
and no sum is split. Rows are padded with zeros to whole panels, columns of bf16 and FP8 to multiples of 4.

- bf16: [panels, in / 2, 16, 2]: pairs of columns.
- FP8: [panels, in / 4, 16, 4] bytes, columns in the order 0, 2, 1, 3: even and odd bytes are pairs.
- NVFP4: [panels, in / 16] blocks of 128 bytes, [2, 16, 4]: byte j of half h holds column 8h + j in its low
  nibble and column 8h + 4 + j in its high one. Four blocks are followed by their 4 x 16 scales, so that a
  panel is one stream; the last blocks of a panel may be fewer than four.

``csrc/cpu/linear`` reads exactly this. Knows bytes; knows no products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ocrquant.formats.nvfp4 import pack as pack_codes
from ocrquant.formats.nvfp4 import unpack as unpack_codes
from ocrquant.formats.precision import NVFP4_BLOCK_SIZE

__all__ = [
    "PANEL",
    "num_panels",
    "pack_bf16",
    "pack_fp8",
    "pack_nvfp4",
    "unpack_bf16",
    "unpack_fp8",
    "unpack_nvfp4",
]

PANEL = 16
_COLUMNS = 4
_GROUP = 4
_BLOCK_BYTES = PANEL * NVFP4_BLOCK_SIZE // 2
_ORDER = (0, 2, 1, 3)  # its own inverse
# Panels converted at once: the temporaries stay small beside the weight.
_PIECE = 64


def num_panels(out_features: int) -> int:
    """Panels of a weight."""
    return -(-out_features // PANEL)


def pack_bf16(weight: Tensor) -> Tensor:
    """[out, in] of two-byte elements to uint8 [panels, bytes]."""

    def panels_of(rows: Tensor) -> Tensor:
        pairs = _columns(rows).view(-1, PANEL, _padded(weight.shape[1]) // 2, 2)
        return pairs.permute(0, 2, 1, 3).contiguous().view(torch.uint8).flatten(1)

    return _pack(panels_of, 2 * PANEL * _padded(weight.shape[1]), weight.view(torch.int16))


def unpack_bf16(panels: Tensor, out_features: int, in_features: int) -> Tensor:
    """The inverse of `pack_bf16`; bf16 [out, in]."""

    def rows_of(piece: Tensor) -> Tensor:
        pairs = piece.view(torch.int16).view(len(piece), -1, PANEL, 2)
        return pairs.permute(0, 2, 1, 3).reshape(len(piece) * PANEL, -1)[:, :in_features]

    return _unpack(rows_of, panels, (out_features, in_features), torch.int16).view(torch.bfloat16)


def pack_fp8(codes: Tensor) -> Tensor:
    """[out, in] of one-byte codes to uint8 [panels, bytes]."""

    def panels_of(rows: Tensor) -> Tensor:
        groups = _columns(rows).view(-1, PANEL, _padded(codes.shape[1]) // _COLUMNS, _COLUMNS)
        return groups[..., _ORDER].permute(0, 2, 1, 3).flatten(1)

    return _pack(panels_of, PANEL * _padded(codes.shape[1]), codes.view(torch.uint8))


def unpack_fp8(panels: Tensor, out_features: int, in_features: int) -> Tensor:
    """The inverse of `pack_fp8`; float8_e4m3fn [out, in]."""

    def rows_of(piece: Tensor) -> Tensor:
        groups = piece.view(len(piece), -1, PANEL, _COLUMNS)[..., _ORDER]
        return groups.permute(0, 2, 1, 3).reshape(len(piece) * PANEL, -1)[:, :in_features]

    return _unpack(rows_of, panels, (out_features, in_features), torch.uint8).view(torch.float8_e4m3fn)


def pack_nvfp4(packed: Tensor, block_scale: Tensor) -> Tensor:
    """Codes [out, in / 2], two a byte, and scales [out, in / 16] to uint8 [panels, bytes]."""
    blocks = block_scale.shape[1]
    grouped = blocks // _GROUP * _GROUP

    def panels_of(rows: Tensor, scales: Tensor) -> Tensor:
        codes = unpack_codes(rows).view(-1, PANEL, blocks, 2, 2, 4)
        halves = codes[..., 0, :] | (codes[..., 1, :] << 4)
        codes = halves.permute(0, 2, 3, 1, 4).reshape(-1, blocks, _BLOCK_BYTES)
        scales = scales.view(-1, PANEL, blocks).permute(0, 2, 1)
        full = torch.cat((_groups(codes[:, :grouped]), _groups(scales[:, :grouped])), dim=-1)
        return torch.cat(
            (full.flatten(1), codes[:, grouped:].flatten(1), scales[:, grouped:].flatten(1)), dim=1
        )

    width = blocks * (_BLOCK_BYTES + PANEL)
    return _pack(panels_of, width, packed, block_scale.view(torch.uint8))


def unpack_nvfp4(panels: Tensor, out_features: int, in_features: int) -> tuple[Tensor, Tensor]:
    """The inverse of `pack_nvfp4`: uint8 [out, in / 2] and float8_e4m3fn [out, in / 16]."""
    blocks = in_features // NVFP4_BLOCK_SIZE
    grouped = blocks // _GROUP * _GROUP
    split = grouped * (_BLOCK_BYTES + PANEL)

    def both_of(piece: Tensor) -> tuple[Tensor, Tensor]:
        full = piece[:, :split].reshape(len(piece), blocks // _GROUP, _GROUP * (_BLOCK_BYTES + PANEL))
        last = piece[:, split:]
        border = (blocks - grouped) * _BLOCK_BYTES
        codes = torch.cat((full[..., : _GROUP * _BLOCK_BYTES].flatten(1), last[:, :border]), dim=1)
        scales = torch.cat((full[..., _GROUP * _BLOCK_BYTES :].flatten(1), last[:, border:]), dim=1)
        halves = codes.view(-1, blocks, 2, PANEL, 4).permute(0, 3, 1, 2, 4)
        codes = torch.stack((halves & 0xF, halves >> 4), dim=-2).reshape(len(piece) * PANEL, -1)
        return pack_codes(codes), scales.view(-1, blocks, PANEL).permute(0, 2, 1).reshape(-1, blocks)

    shape = (out_features, in_features // 2)
    codes = _unpack(lambda piece: both_of(piece)[0], panels, shape, torch.uint8)
    scales = _unpack(lambda piece: both_of(piece)[1], panels, (out_features, blocks), torch.uint8)
    return codes, scales.view(torch.float8_e4m3fn)


def _padded(columns: int) -> int:
    return -(-columns // _COLUMNS) * _COLUMNS


def _columns(rows: Tensor) -> Tensor:
    return F.pad(rows, (0, _padded(rows.shape[1]) - rows.shape[1]))


def _groups(blocks: Tensor) -> Tensor:
    """[panels, blocks, bytes] with four blocks after one another."""
    panels, count, size = blocks.shape
    return blocks.reshape(panels, count // _GROUP, _GROUP * size)


def _pieces(out_features: int) -> Iterator[tuple[int, int]]:
    count = num_panels(out_features)
    return ((begin, min(begin + _PIECE, count)) for begin in range(0, count, _PIECE))


def _pack(panels_of: Callable[..., Tensor], width: int, *sources: Tensor) -> Tensor:
    out_features = len(sources[0])
    panels = torch.empty(num_panels(out_features), width, dtype=torch.uint8)
    for begin, end in _pieces(out_features):
        rows = [source[begin * PANEL : end * PANEL] for source in sources]
        missing = (end - begin) * PANEL - len(rows[0])
        panels[begin:end] = panels_of(*(F.pad(part, (0, 0, 0, missing)) for part in rows))
    return panels


def _unpack(
    rows_of: Callable[[Tensor], Tensor], panels: Tensor, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    rows = torch.empty(shape, dtype=dtype)
    for begin, end in _pieces(shape[0]):
        target = rows[begin * PANEL : end * PANEL]
        target.copy_(rows_of(panels[begin:end])[: len(target)])
    return rows
