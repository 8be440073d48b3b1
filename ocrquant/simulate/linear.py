"""A linear as a server computes it: stored weight, activations quantized on the fly, scales and bias last.

Knows formats and products. Does not know which model a linear belongs to; see ``plan``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.errors import ShapeError
from ocrquant.formats import Precision, nvfp4
from ocrquant.formats.weights import FP8Weight, QuantizedWeight
from ocrquant.simulate.operands import fp8_operand, nvfp4_operand, operand_dtype
from ocrquant.simulate.products import exact_product

__all__ = ["QuantizedLinear", "SimulatedLinear", "simulated_output"]

# Rows are taken in pieces, which bounds memory for wide outputs; on a CPU the allocator then hands the same
# temporaries out again. 2000 rows through 768 x 256 on one core of a Xeon at 2.1 GHz, FP8 and NVFP4: at once
# 10.9 and 12.6 ms, in pieces of 512 rows 4.8 and 5.1 ms (medians of 15, 2026-11-30).
_CPU_PIECE_ELEMENTS = 1 << 19
_GPU_PIECE_ELEMENTS = 1 << 26
_MIN_PIECE_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLinear:
    """A quantized linear, ready to be multiplied with; make it with ``of``.

    Attributes:
        precision: ``fp8`` or ``nvfp4``, of weight and activations alike.
        operand: [out, in] in ``operand_dtype`` of its device: codes, for NVFP4 times their block scales.
        output_scale: float32, what sums of products are multiplied by: [1, out] for FP8, where the scale of
            each token comes on top, [1] for NVFP4, both global scales in one.
        input_encode_scale: NVFP4's calibrated global scale of the input, float32 [1].
    """

    precision: Precision
    operand: Tensor
    output_scale: Tensor
    input_encode_scale: Tensor | None

    @classmethod
    def of(
        cls,
        weight: QuantizedWeight,
        input_encode_scale: Tensor | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> SimulatedLinear:
        """Takes a stored weight apart into operand and scales.

        Args:
            weight: The weight as stored.
            input_encode_scale: Calibrated global scale of the input, float32 [1]; NVFP4 only.
            device: Where to compute; where the weight is when left out.

        Raises:
            ShapeError: A global scale is missing for NVFP4, or given for FP8.
        """
        if (input_encode_scale is None) == (weight.precision is Precision.NVFP4):
            raise ShapeError(
                f"{weight.precision} linear {list(weight.shape)}",
                expected="a global scale of the input for nvfp4, none for fp8",
                given="none" if input_encode_scale is None else "one",
                fix="calibrate the inputs of nvfp4 linears",
            )
        if isinstance(weight, FP8Weight):
            codes = weight.codes.to(device)
            operand = codes.to(operand_dtype(codes.device))
            scale = weight.decode_scale.to(codes.device).reshape(1, -1)
            return cls(precision=Precision.FP8, operand=operand, output_scale=scale, input_encode_scale=None)
        codes = nvfp4.unpack(weight.packed.to(device))
        one = torch.ones(1, device=codes.device)
        operand = nvfp4.decode(codes, weight.block_scale.to(codes.device), one, operand_dtype(codes.device))
        assert input_encode_scale is not None
        encode_scale = input_encode_scale.to(codes.device, torch.float32).reshape(1)
        scale = weight.encode_scale.to(codes.device).reciprocal() * encode_scale.reciprocal()
        return cls(
            precision=Precision.NVFP4, operand=operand, output_scale=scale, input_encode_scale=encode_scale
        )

    @property
    def shape(self) -> tuple[int, int]:
        """``(out, in)``."""
        return self.operand.shape[0], self.operand.shape[1]

    def to(self, device: torch.device) -> SimulatedLinear:
        """The same on a device; itself where it is there already."""
        if self.operand.device == device:
            return self
        encode_scale = self.input_encode_scale
        return replace(
            self,
            operand=self.operand.to(device, operand_dtype(device)),
            output_scale=self.output_scale.to(device),
            input_encode_scale=None if encode_scale is None else encode_scale.to(device),
        )


def simulated_output(x: Tensor, linear: SimulatedLinear, bias: Tensor | None = None) -> Tensor:
    """What a server's quantized linear gives for an input.

    Activations are quantized from their float32 values: FP8 by token, NVFP4 in blocks of 16 under the
    calibrated global scale, saturating beyond it. Sums, scales and bias are float32, rounded once at the end.

    The gradient with respect to ``x`` is straight through the quantizers: that of a linear with the
    dequantized weight. Neither weight nor bias gets one.

    Args:
        x: [..., in], any float dtype, on the device of ``linear``.
        linear: The quantized linear.
        bias: [out].

    Returns:
        [..., out] in the dtype of ``x``.

    Raises:
        ShapeError: The width of ``x`` is not that of the linear.
    """
    if x.shape[-1] != linear.operand.shape[1]:
        raise ShapeError(
            f"input of shape {list(x.shape)} of a quantized linear",
            expected=f"width {linear.operand.shape[1]}",
            given=x.shape[-1],
            fix="pass the input of this very linear",
        )
    if torch.is_grad_enabled() and x.requires_grad:
        return _straight_through(x, linear, bias)
    return _output(x, linear, bias)


@torch.no_grad()
def _output(x: Tensor, linear: SimulatedLinear, bias: Tensor | None) -> Tensor:
    out_features, in_features = linear.shape
    rows = x.reshape(-1, in_features)
    elements = _CPU_PIECE_ELEMENTS if x.device.type == "cpu" else _GPU_PIECE_ELEMENTS
    step = max(_MIN_PIECE_ROWS, elements // max(out_features, in_features))
    if len(rows) <= step:
        return _rows_output(rows, linear, bias).view(*x.shape[:-1], out_features)
    output = x.new_empty(len(rows), out_features)
    for start in range(0, len(rows), step):
        output[start : start + step] = _rows_output(rows[start : start + step], linear, bias)
    return output.view(*x.shape[:-1], out_features)


def _rows_output(rows: Tensor, linear: SimulatedLinear, bias: Tensor | None) -> Tensor:
    if linear.input_encode_scale is None:
        operand, token_scale = fp8_operand(rows)
        sums = exact_product(operand, linear.operand).mul_(token_scale).mul_(linear.output_scale)
    else:
        operand = nvfp4_operand(rows, linear.input_encode_scale)
        sums = exact_product(operand, linear.operand).mul_(linear.output_scale)
    if bias is not None:
        sums.add_(bias)
    return sums.to(rows.dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: SimulatedLinear, bias: Tensor | None) -> Tensor:
        ctx.linear = linear
        return _output(x, linear, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,), linear = gradients, ctx.linear
        weight_scale = linear.output_scale
        if linear.input_encode_scale is not None:
            weight_scale = weight_scale * linear.input_encode_scale
        dtype = linear.operand.dtype
        scaled = (gradient.float() * weight_scale).to(dtype)
        return (scaled @ linear.operand).to(gradient.dtype), None, None


_straight_through: Callable[..., Tensor] = _StraightThrough.apply


class QuantizedLinear(nn.Module):
    """Stands in for an ``nn.Linear`` while a plan is applied.

    Args:
        linear: The quantized linear.
        bias: The bias of the original, shared with it.
    """

    def __init__(self, linear: SimulatedLinear, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.shape
        self.linear = linear
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]; see ``simulated_output``."""
        return simulated_output(x, self.linear, self.bias)

    def extra_repr(self) -> str:
        """Widths and precision."""
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.linear.precision}"
