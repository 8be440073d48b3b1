"""How weights lie in memory for the native linears: panels of 16 output rows, the input dimension inside.

A panel holds its 16 rows interleaved, so that a vector register holds the same input columns of 16 outputs
and no sum is split. Rows are padded with zeros to whole panels, columns of bf16 and FP8 to multiples of 4.

- bf16: [panels, in / 2, 16, 2]: pairs of columns.
- FP8: [panels, in / 4, 16, 4] bytes, columns in the order 0, 2, 1, 3: even and odd bytes are pairs.
- NVFP4: [panels, in / 16] blocks of 128 bytes, [2, 16, 4]: four bytes hold eight columns of an output, in the
  order of ``_NIBBLES``, so that the lowest nibbles of two words of 16 bits are a pair of columns. Four
  blocks are followed by their scales, [16, 4] bytes, so that a panel is one stream. The last blocks of a
  panel may be fewer than four; their scales take as much room.

Before the first panel 64 bytes may be read.

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
from ocrquant.kernels.linear.memory import zeros

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
_SCALE_BYTES = PANEL * _GROUP
_ORDER = (0, 2, 1, 3)  # its own inverse
_HALF = 8  # columns of half a block: four bytes of an output
# Column of each nibble, the lowest first: even columns in the lower word, odd ones in the upper one.
_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)
_NIBBLE_OF_COLUMN = tuple(_NIBBLES.index(column) for column in range(_HALF))
_LEAD = 64
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
        columns = unpack_codes(rows).view(-1, PANEL, blocks, 2, _HALF)[..., _NIBBLES]
        codes = (columns[..., 0::2] | (columns[..., 1::2] << 4)).permute(0, 2, 3, 1, 4)
        codes = codes.reshape(-1, blocks, _BLOCK_BYTES)
        scales = F.pad(scales, (0, -blocks % _GROUP)).view(-1, PANEL, _groups(blocks), _GROUP)
        scales = scales.permute(0, 2, 1, 3).flatten(2)
        full = codes[:, :grouped].reshape(len(codes), blocks // _GROUP, _GROUP * _BLOCK_BYTES)
        full = torch.cat((full, scales[:, : blocks // _GROUP]), dim=-1)
        last = (codes[:, grouped:].flatten(1), scales[:, blocks // _GROUP :].flatten(1))
        return torch.cat((full.flatten(1), *last), dim=1)

    width = blocks * _BLOCK_BYTES + _groups(blocks) * _SCALE_BYTES
    return _pack(panels_of, width, packed, block_scale.view(torch.uint8))


def unpack_nvfp4(panels: Tensor, out_features: int, in_features: int) -> tuple[Tensor, Tensor]:
    """The inverse of `pack_nvfp4`: uint8 [out, in / 2] and float8_e4m3fn [out, in / 16]."""
    blocks = in_features // NVFP4_BLOCK_SIZE
    split = blocks // _GROUP * (_GROUP * _BLOCK_BYTES + _SCALE_BYTES)

    def codes_of(piece: Tensor) -> Tensor:
        full = piece[:, :split].reshape(len(piece), blocks // _GROUP, _GROUP * _BLOCK_BYTES + _SCALE_BYTES)
        last = piece[:, split : split + blocks % _GROUP * _BLOCK_BYTES]
        codes = torch.cat((full[..., : _GROUP * _BLOCK_BYTES].flatten(1), last), dim=1)
        halves = codes.view(-1, blocks, 2, PANEL, _HALF // 2).permute(0, 3, 1, 2, 4)
        nibbles = torch.stack((halves & 0xF, halves >> 4), dim=-1).flatten(-2)
        return pack_codes(nibbles[..., _NIBBLE_OF_COLUMN].reshape(len(piece) * PANEL, -1))

    def scales_of(piece: Tensor) -> Tensor:
        full = piece[:, :split].reshape(len(piece), blocks // _GROUP, _GROUP * _BLOCK_BYTES + _SCALE_BYTES)
        last = piece[:, split + blocks % _GROUP * _BLOCK_BYTES :]
        scales = torch.cat((full[..., _GROUP * _BLOCK_BYTES :].flatten(1), last), dim=1)
        scales = scales.view(-1, _groups(blocks), PANEL, _GROUP).permute(0, 2, 1, 3)
        return scales.reshape(len(piece) * PANEL, -1)[:, :blocks]

    codes = _unpack(codes_of, panels, (out_features, in_features // 2), torch.uint8)
    scales = _unpack(scales_of, panels, (out_features, blocks), torch.uint8)
    return codes, scales.view(torch.float8_e4m3fn)


def _padded(columns: int) -> int:
    return -(-columns // _COLUMNS) * _COLUMNS


def _columns(rows: Tensor) -> Tensor:
    return F.pad(rows, (0, _padded(rows.shape[1]) - rows.shape[1]))


def _groups(blocks: int) -> int:
    return -(-blocks // _GROUP)


def _pieces(out_features: int) -> Iterator[tuple[int, int]]:
    count = num_panels(out_features)
    return ((begin, min(begin + _PIECE, count)) for begin in range(0, count, _PIECE))


def _pack(panels_of: Callable[..., Tensor], width: int, *sources: Tensor) -> Tensor:
    out_features = len(sources[0])
    size = num_panels(out_features) * width
    panels = zeros(_LEAD + size)[_LEAD:].view(-1, width)
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
