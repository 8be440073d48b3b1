"""Products on a GPU by libraries, most of them behind torch, for operands and weights as they are.

`linear_reference` is the definition: sums in float32, scales on the sums, bias, one rounding. Libraries add
up in another order. Nothing here waits for the device or reads a tensor on the host, so that a step can be
captured. Knows layouts of torch's scaled products; knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

from ocrquant.formats import nvfp4
from ocrquant.formats.nvfp4 import NVFP4Weight
from ocrquant.formats.precision import Precision
from ocrquant.formats.scale_layout import swizzle
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.libraries import require_asked
from ocrquant.kernels.linear.packed import PackedWeight
from ocrquant.kernels.linear.reference import row_scales
from ocrquant.kernels.matmul import flashinfer_calls
from ocrquant.kernels.matmul.arch import Arch, arch_of
from ocrquant.kernels.matmul.table import SMALL_ROWS, Form, Product, Rule, choose
from ocrquant.kernels.operand import Operand

__all__ = ["IMPLEMENTATIONS", "form_of", "linear_gpu", "rule_for"]

_E4M3, _E2M1X2 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
_TENSOR, _ROW, _BLOCK = (
    kind.value for kind in (ScalingType.TensorWise, ScalingType.RowWise, ScalingType.BlockWise1x16)
)
_TILES = [SwizzleType.SWIZZLE_32_4_4.value]


def form_of(x: Operand, weight: PackedWeight) -> Form:
    """What is multiplied: a quantized weight reads codes of its own precision where the operand has them."""
    if weight.precision is Precision.FP8:
        return "bf16 x fp8" if x.fp8 is None else "fp8 x fp8"
    if weight.precision is Precision.NVFP4:
        return "bf16 x nvfp4" if x.nvfp4 is None else "nvfp4 x nvfp4"
    return "bf16 x bf16"


def rule_for(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None, arch: Arch) -> Rule:
    """The line of the table that serves a call."""
    is_wide = torch.float32 in (out.dtype, None if bias is None else bias.dtype)
    is_fp8 = weight.precision is Precision.FP8
    product = Product(
        form_of(x, weight),
        weight.out_features,
        weight.in_features,
        is_wide,
        is_small=len(out) <= SMALL_ROWS,
        is_uniform=weight.decode_scale is not None and not (is_fp8 and x.fp8_static is None),
        has_bias=bias is not None,
    )
    return choose(product, arch)


def linear_gpu(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None = None) -> Rule:
    """See `linear_reference`; on a CUDA device, with a weight that `pack` made for one.

    Args:
        x: R rows of the width of the weight.
        weight: [n, w].
        out: [R, n] in bf16 or float32; rows may be strided.
        bias: [n] in the dtype of out or float32, or None.

    Returns:
        The line of the table that served.

    Raises:
        DeviceError: ``OCRQUANT_LIBRARIES`` asks for a library that cannot be used.
    """
    require_asked()
    rule = rule_for(x, weight, out, bias, arch_of(out.device))
    if out.shape[0]:
        IMPLEMENTATIONS[rule.implementation](x, weight, out, bias)
    return rule


def _mm(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None) -> None:
    assert x.plain is not None, "the contract looks for it"
    assert isinstance(weight.stored, Tensor), "a bf16 weight for a GPU stays as it is stored"
    columns = weight.stored.t()
    if out.dtype == x.plain.dtype and bias is None:
        torch.mm(x.plain, columns, out=out)
    else:
        _finish(_float_sums(x.plain, columns), None, bias, out)


def _scaled_rows(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None) -> None:
    codes, scale = _fp8_rows(x)
    assert isinstance(weight.stored, FP8Weight), "chosen for FP8"
    channels = _channels(weight).view(1, -1)
    with _dense(out) as dense:
        _scaled_mm(codes, weight.stored.codes, [scale], [_ROW], [], [channels], [_ROW], [], bias, dense)


def _scaled_sums(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None) -> None:
    codes, scale = _fp8_rows(x)
    assert isinstance(weight.stored, FP8Weight), "chosen for FP8"
    one = _ones(out.device)
    sums = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    _scaled_mm(codes, weight.stored.codes, [one], [_TENSOR], [], [one], [_TENSOR], [], None, sums)
    sums *= scale
    _finish(sums, _channels(weight), bias, out)


def _scaled_blocks(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None) -> None:
    codes, tiles, decode = _nvfp4_rows(x)
    assert isinstance(weight.stored, NVFP4Weight), "chosen for NVFP4"
    assert weight.tiles is not None, "packed for a GPU"
    rows, columns = codes.view(_E2M1X2), weight.stored.packed.view(_E2M1X2)
    scales = tiles.view(_E4M3), weight.tiles.view(_E4M3)
    if weight.decode_scale is not None and bias is None:
        both = [_BLOCK, _TENSOR]
        left, right = [scales[0], decode], [scales[1], weight.decode_scale]
        with _dense(out) as dense:
            _scaled_mm(rows, columns, left, both, _TILES, right, both, _TILES, None, dense)
        return
    sums = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    _scaled_mm(rows, columns, [scales[0]], [_BLOCK], _TILES, [scales[1]], [_BLOCK], _TILES, None, sums)
    _finish(sums, _channels(weight) * decode, bias, out)


def _flashinfer_fp8(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None) -> None:
    assert isinstance(weight.stored, FP8Weight), "chosen for FP8"
    assert x.fp8 is not None, "chosen for its codes"
    assert x.fp8_static is not None, "chosen for one scale a side"
    assert weight.decode_scale is not None, "chosen for one scale a side"
    assert bias is None, "chosen for none"
    with _dense(out) as dense:
        flashinfer_calls.bmm_fp8(
            x.fp8.view(_E4M3), weight.stored.codes, x.fp8_static, weight.decode_scale, dense
        )


def _flashinfer_fp4(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None) -> None:
    rows, tiles, decode = _nvfp4_rows(x)
    assert isinstance(weight.stored, NVFP4Weight), "chosen for NVFP4"
    assert weight.tiles is not None, "packed for a GPU"
    assert weight.decode_scale is not None, "chosen for one scale a side"
    assert bias is None, "chosen for none"
    sides = (rows, weight.stored.packed, tiles, weight.tiles)
    with _dense(out) as dense:
        flashinfer_calls.mm_fp4(*sides, decode * weight.decode_scale, dense)


def _small_linear(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None) -> None:
    # Loaded here: only where it was asked for.
    from ocrquant.kernels.cuda import small_linear

    assert x.plain is not None, "chosen for plain rows"
    small_linear(x.plain, weight, out, bias)


def _decode(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None) -> None:
    """Values of codes, times their block scales, are numbers of bf16: nothing is lost before the sums."""
    stored = weight.stored
    assert isinstance(stored, FP8Weight | NVFP4Weight), "chosen for a quantized weight"
    channels = _channels(weight)
    if isinstance(stored, FP8Weight):
        columns = stored.codes.to(torch.bfloat16)
        values, scale = (x.plain, None) if x.fp8 is None else _fp8_rows(x)
        assert values is not None, "the contract looks for it"
        sums = _float_sums(values.to(torch.bfloat16), columns.t())
        if scale is not None:
            sums *= scale
    else:
        columns = _nvfp4_values(stored.packed, stored.block_scale)
        rows = x.plain if x.nvfp4 is None else _nvfp4_values(x.nvfp4, row_scales(x))
        assert rows is not None, "the contract looks for it"
        sums = _float_sums(rows.to(torch.bfloat16), columns.t())
        if x.nvfp4 is not None:
            assert x.encode_scale is not None, "the contract looks for it"
            channels = channels * x.encode_scale.reciprocal()
    _finish(sums, channels, bias, out)


IMPLEMENTATIONS: Mapping[str, Callable[[Operand, PackedWeight, Tensor, Tensor | None], None]] = (
    MappingProxyType(
        {
            "mm": _mm,
            "scaled_mm rows": _scaled_rows,
            "scaled_mm sums": _scaled_sums,
            "scaled_mm blocks": _scaled_blocks,
            "flashinfer bmm_fp8": _flashinfer_fp8,
            "flashinfer mm_fp4": _flashinfer_fp4,
            "small_linear": _small_linear,
            "decode": _decode,
        }
    )
)
"""By the names of the table."""


def _scaled_mm(
    rows: Tensor,
    weight: Tensor,
    row_scales: list[Tensor],
    row_kinds: list[int],
    row_order: list[int],
    weight_scales: list[Tensor],
    weight_kinds: list[int],
    weight_order: list[int],
    bias: Tensor | None,
    out: Tensor,
) -> None:
    """``torch.nn.functional.scaled_mm`` into memory of the caller, without fast accumulation."""
    torch.ops.aten._scaled_mm_v2.out(
        rows,
        weight.t(),
        row_scales,
        row_kinds,
        row_order,
        weight_scales,
        weight_kinds,
        weight_order,
        bias,
        out.dtype,
        [],
        False,
        out=out,
    )


def _fp8_rows(x: Operand) -> tuple[Tensor, Tensor]:
    """Codes [R, w], and a scale a row [R, 1], also where one scale serves all."""
    assert x.fp8 is not None, "chosen for its codes"
    if x.fp8_static is not None:
        scale = x.fp8_static.view(1, 1).expand(x.fp8.shape[0], 1).contiguous()
    else:
        assert x.fp8_scale is not None, "the contract looks for one of the two"
        scale = x.fp8_scale.view(-1, 1)
    return x.fp8.view(_E4M3), scale


def _nvfp4_rows(x: Operand) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [R, w / 2], block scales in the 128x4 layout, and float32 [1], what sums are multiplied by."""
    assert x.nvfp4 is not None, "chosen for its codes"
    assert x.encode_scale is not None, "the contract looks for it"
    tiles = x.nvfp4_swizzled
    if tiles is None:
        assert x.nvfp4_scale is not None, "the contract looks for one of the two"
        tiles = swizzle(x.nvfp4_scale)
    return x.nvfp4, tiles, x.encode_scale.reciprocal()


@contextmanager
def _dense(out: Tensor) -> Iterator[Tensor]:
    """The result itself where its rows lie one after another, else memory that is copied there afterwards."""
    if out.is_contiguous():
        yield out
        return
    dense = torch.empty_like(out, memory_format=torch.contiguous_format)
    yield dense
    out.copy_(dense)


def _nvfp4_values(packed: Tensor, block_scale: Tensor) -> Tensor:
    one = _ones(packed.device)
    return nvfp4.decode(nvfp4.unpack(packed), block_scale, one).to(torch.bfloat16)


def _channels(weight: PackedWeight) -> Tensor:
    """float32 [n], what the sums of each channel are multiplied by."""
    assert weight.channel_scale is not None, "a quantized weight has it"
    return weight.channel_scale[: weight.out_features]


def _float_sums(rows: Tensor, columns: Tensor) -> Tensor:
    if rows.device.type == "cuda":
        return torch.mm(rows, columns, out_dtype=torch.float32)
    return rows.float() @ columns.float()


def _finish(sums: Tensor, channels: Tensor | None, bias: Tensor | None, out: Tensor) -> None:
    if channels is not None:
        sums = sums * channels
    if bias is not None:
        sums = sums + bias
    out.copy_(sums)


_kept_ones: dict[torch.device, Tensor] = {}


def _ones(device: torch.device) -> Tensor:
    """float32 [1], 1.0: made in the first step, which is never the one that is captured."""
    found = _kept_ones.get(device)
    if found is None:
        found = _kept_ones[device] = torch.ones(1, device=device)
    return found
