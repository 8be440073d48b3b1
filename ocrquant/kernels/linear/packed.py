"""Weights of linears in the form that `linear` reads, one linear or several merged along the outputs.

On a CPU, bf16 and quantized weights become panels (``layout``) that hold the same bits in another order; on
other devices, and for other float dtypes, the weight stays as it is stored. Knows formats and layouts; knows
no products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats.nvfp4 import NVFP4Weight
from ocrquant.formats.precision import Precision
from ocrquant.formats.scale_layout import swizzle
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.linear import layout

__all__ = ["PackedWeight", "Weight", "pack", "unpack"]

Weight: TypeAlias = Tensor | FP8Weight | NVFP4Weight


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedWeight:
    """A weight [out, in], opaque but for its sizes; make it with `pack`.

    Attributes:
        precision: That of every merged part; bf16 stands for any float dtype that is not quantized.
        dtype: Of the elements where they are not quantized; of what the sums are in otherwise (float32).
        out_features: Outputs of all parts together.
        in_features: Inputs.
        part_rows: Outputs of each part.
        device: Where it lies.
        panels: uint8 [panels, bytes] in the layout of the native op, or None.
        stored: The weight as it came, where it is not in panels.
        channel_scale: float32 [16 * panels], what sums are multiplied by: the decode scale of FP8, the
            reciprocal of NVFP4's global scale, NaN for a channel with a NaN code. None for bf16.
        part_scales: What `unpack` needs beside the panels: decode scale (FP8) or encode scale (NVFP4) of each
            part.
        tiles: uint8, NVFP4's block scales in the 128x4 layout that the matrix units of GPUs read, or None.
        decode_scale: float32 [1], where all outputs share one and the weight is for a GPU: the decode scale
            of FP8, the reciprocal of NVFP4's global scale. None otherwise.
    """

    precision: Precision
    dtype: torch.dtype
    out_features: int
    in_features: int
    part_rows: tuple[int, ...]
    device: torch.device
    panels: Tensor | None
    stored: Weight | None
    channel_scale: Tensor | None
    part_scales: tuple[Tensor, ...]
    tiles: Tensor | None = None
    decode_scale: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """``(out, in)``."""
        return self.out_features, self.in_features

    @property
    def nbytes(self) -> int:
        """Bytes in memory, scales included."""
        owned = [self.panels, self.channel_scale, *self.part_scales, self.tiles, self.decode_scale]
        if self.stored is not None:
            owned.append(_values(self.stored))
            if isinstance(self.stored, NVFP4Weight):
                owned.append(self.stored.block_scale)
        distinct = {t.data_ptr(): t.nbytes for t in owned if t is not None}
        return sum(distinct.values())


@torch.no_grad()
def pack(
    weight: Weight | Sequence[Weight], device: torch.device | str = "cpu", *, for_gpu: bool | None = None
) -> PackedWeight:
    """Packs one weight, or several of one precision and width merged along their outputs.

    Args:
        weight: [out, in], or a sequence of such: a float tensor, ``FP8Weight`` or ``NVFP4Weight``. Global
            scales of merged NVFP4 weights may differ.
        device: Where the packed weight is to be.
        for_gpu: Whether in the form that the matrix units of a GPU read, wherever it lies; None: by its
            device.

    Returns:
        For a CPU 16 outputs at a time, so up to 15 rows of padding, and for NVFP4 four bytes an output for
        the global scale.

    Raises:
        ShapeError: There is no weight, or precisions, dtypes or widths differ.
    """
    parts = [weight] if isinstance(weight, (Tensor, FP8Weight, NVFP4Weight)) else list(weight)
    device = torch.device(device)
    precision, dtype = _common(parts)
    rows = tuple(part.shape[0] for part in parts)
    scales, channel_scale = _scales(parts)
    merged = _merge(parts, device)
    for_gpu = device.type == "cuda" if for_gpu is None else for_gpu
    in_panels = device.type == "cpu" and not for_gpu and dtype in (torch.bfloat16, None)
    panels = _panels(merged) if in_panels else None
    if channel_scale is not None:
        padding = layout.PANEL * layout.num_panels(len(channel_scale)) - len(channel_scale)
        channel_scale = F.pad(channel_scale, (0, padding)).to(device)
    return PackedWeight(
        precision=precision,
        dtype=torch.float32 if dtype is None else dtype,
        out_features=sum(rows),
        in_features=parts[0].shape[1],
        part_rows=rows,
        device=device,
        panels=panels,
        stored=merged if panels is None else None,
        channel_scale=channel_scale,
        part_scales=tuple(scale.to(device) for scale in scales),
        **(_for_matrix_units(merged, scales) if for_gpu else {}),
    )


def _for_matrix_units(merged: Weight, scales: Sequence[Tensor]) -> dict[str, Tensor | None]:
    """What a GPU reads beside the codes of a quantized weight."""
    if isinstance(merged, Tensor):
        return {}
    every = torch.cat([scale.flatten() for scale in scales])
    is_shared = every.unique().numel() == 1
    if isinstance(merged, FP8Weight):
        return {"decode_scale": every[:1].to(merged.codes.device) if is_shared else None}
    shared = merged.encode_scale.float().reciprocal().view(1) if is_shared else None
    return {"tiles": swizzle(merged.block_scale.view(torch.uint8)), "decode_scale": shared}


def unpack(packed: PackedWeight) -> tuple[Weight, ...]:
    """The weights that were packed, bit for bit, in their order."""
    merged = stored_form(packed)
    parts: list[Weight] = []
    begin = 0
    for index, rows in enumerate(packed.part_rows):
        cut = slice(begin, begin + rows)
        begin += rows
        if isinstance(merged, FP8Weight):
            parts.append(FP8Weight(codes=merged.codes[cut], decode_scale=packed.part_scales[index]))
        elif isinstance(merged, NVFP4Weight):
            part = NVFP4Weight(
                packed=merged.packed[cut],
                block_scale=merged.block_scale[cut],
                encode_scale=packed.part_scales[index],
            )
            parts.append(part)
        else:
            parts.append(merged[cut])
    return tuple(parts)


def stored_form(packed: PackedWeight) -> Weight:
    """All parts as one weight in stored form; its scales of parts are not to be read."""
    if packed.stored is not None:
        return packed.stored
    assert packed.panels is not None, "a packed weight has one of the two"
    if packed.precision is Precision.NVFP4:
        codes, block_scale = layout.unpack_nvfp4(packed.panels, *packed.shape)
        return NVFP4Weight(packed=codes, block_scale=block_scale, encode_scale=packed.part_scales[0])
    if packed.precision is Precision.FP8:
        codes = layout.unpack_fp8(packed.panels, *packed.shape)
        return FP8Weight(codes=codes, decode_scale=torch.cat(packed.part_scales))
    return layout.unpack_bf16(packed.panels, *packed.shape)


def _common(parts: Sequence[Weight]) -> tuple[Precision, torch.dtype | None]:
    """The precision, and the dtype of weights that are not quantized."""
    kinds = {
        (_precision(part), part.shape[1], part.dtype if isinstance(part, Tensor) else None) for part in parts
    }
    if len(kinds) != 1:
        raise ShapeError(
            "weights to merge",
            expected="at least one, all of one precision, dtype and width",
            given=", ".join(f"{p} {list(part.shape)}" for part in parts for p in [_precision(part)])
            or "none",
            fix="pack them apart",
        )
    (precision, width, dtype) = kinds.pop()
    if width == 0 or (dtype is not None and not dtype.is_floating_point):
        fix = "pass a float weight with inputs"
        raise ShapeError(
            "weight to pack", expected="a width and a float dtype", given=f"{width}, {dtype}", fix=fix
        )
    return precision, dtype


def _precision(part: Weight) -> Precision:
    return Precision.BF16 if isinstance(part, Tensor) else part.precision


def _values(part: Weight) -> Tensor:
    if isinstance(part, FP8Weight):
        return part.codes
    return part.packed if isinstance(part, NVFP4Weight) else part


def _scales(parts: Sequence[Weight]) -> tuple[list[Tensor], Tensor | None]:
    """Scales of the parts as they are stored, and what the sums of each channel are multiplied by."""
    scales: list[Tensor] = []
    channels: list[Tensor] = []
    for part in parts:
        if isinstance(part, FP8Weight):
            scales.append(part.decode_scale)
            has_nan = (part.codes.view(torch.uint8) & 0x7F).eq(0x7F).any(dim=1)
            channels.append(part.decode_scale.flatten().masked_fill(has_nan, torch.nan))
        elif isinstance(part, NVFP4Weight):
            scales.append(part.encode_scale)
            channels.append(part.encode_scale.reciprocal().expand(part.shape[0]))
    return scales, torch.cat(channels) if channels else None


def _merge(parts: Sequence[Weight], device: torch.device) -> Weight:
    values = torch.cat([_values(part).to(device).view(torch.uint8) for part in parts])
    first = parts[0]
    if isinstance(first, FP8Weight):
        scale = torch.cat([part.decode_scale for part in parts if isinstance(part, FP8Weight)]).to(device)
        return FP8Weight(codes=values.view(torch.float8_e4m3fn), decode_scale=scale)
    if isinstance(first, NVFP4Weight):
        blocks = [
            part.block_scale.to(device).view(torch.uint8) for part in parts if isinstance(part, NVFP4Weight)
        ]
        block_scale = torch.cat(blocks).view(torch.float8_e4m3fn)
        return NVFP4Weight(packed=values, block_scale=block_scale, encode_scale=first.encode_scale.to(device))
    return values.view(first.dtype)


def _panels(merged: Weight) -> Tensor:
    if isinstance(merged, FP8Weight):
        return layout.pack_fp8(merged.codes)
    if isinstance(merged, NVFP4Weight):
        return layout.pack_nvfp4(merged.packed, merged.block_scale)
    return layout.pack_bf16(merged)
