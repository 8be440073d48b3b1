"""What rounding is judged by: the error of a layer's output with weights and activations quantized.

Knows matrices. Does not know where activations come from or how a weight was rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.formats.weights import QuantizedWeight

__all__ = ["Judge", "Rows", "output_error", "quantize_input"]

# Output columns at once: bounds the memory of a vocabulary-wide output to a few hundred megabytes.
_OUTPUT_PIECE = 8192


@dataclass(frozen=True, slots=True)
class Rows:
    """A sample of a layer's input.

    Attributes:
        values: float32 [rows, in].
        weights: float32 [rows], how much each row counts; they sum to 1 unless there is no row.
    """

    values: Tensor
    weights: Tensor

    def divided(self, smoothing: Tensor | None) -> Rows:
        """The input of the smoothed model; ``smoothing`` is float32 [in]."""
        return self if smoothing is None else Rows(self.values / smoothing, self.weights)

    def second_moment(self) -> Tensor:
        """Weighted mean of x² of each channel, float32 [in]."""
        return self.weights @ self.values.square()


def quantize_input(values: Tensor, precision: Precision, encode_scale: Tensor) -> Tensor:
    """What the matrix product sees of its input: quantized and decoded again.

    Args:
        values: float32 [rows, in].
        precision: FP8 takes a dynamic scale a row, NVFP4 dynamic block scales under ``encode_scale``.
        encode_scale: Calibrated NVFP4 global scale, float32 [1].

    Returns:
        float32 [rows, in].
    """
    if precision is Precision.FP8:
        return fp8.quantize_dequantize(values, fp8.token_decode_scale(values))
    if precision is Precision.NVFP4:
        return nvfp4.quantize_dequantize_activation(values, encode_scale)
    return values


@torch.no_grad()
def output_error(
    weights: Sequence[Tensor], rounded: Sequence[Tensor], rows: Rows, quantized_rows: Tensor
) -> float:
    """Squared error of the output over the squared output, averaged over the linears of a group.

    The average gives every linear the same say: the outputs of q, k and v have different units.

    Args:
        weights: float32 [out, in] each: the weights that the rows belong to.
        rounded: float32 [out, in] each: what stands in for them.
        rows: The input.
        quantized_rows: float32 [rows, in]: the input that meets the rounded weights.

    Returns:
        The ratio; 0 for an output that is zero everywhere and stays so, or where there is no row.
    """
    total = sum(
        _relative_error(weight, other, rows, quantized_rows)
        for weight, other in zip(weights, rounded, strict=True)
    )
    return total / len(weights)


class Judge:
    """Output error of candidates for one group in one format.

    Args:
        weights: float32 [out, in] each: the weights that the rows belong to.
        precision: Format of weights and activations.
        rows: The input.
        encode_scale: Calibrated NVFP4 global scale of the activations, float32 [1].
    """

    def __init__(
        self, weights: Sequence[Tensor], precision: Precision, rows: Rows, encode_scale: Tensor
    ) -> None:
        self._weights, self._rows = weights, rows
        self._quantized = quantize_input(rows.values, precision, encode_scale)

    def error(self, rounded: Sequence[QuantizedWeight]) -> float:
        """`output_error` of stored weights, in the order of the group."""
        return output_error(
            self._weights, [weight.dequantize() for weight in rounded], self._rows, self._quantized
        )


def _relative_error(weight: Tensor, rounded: Tensor, rows: Rows, quantized_rows: Tensor) -> float:
    error = output = 0.0
    for reference, other in zip(weight.split(_OUTPUT_PIECE), rounded.split(_OUTPUT_PIECE), strict=True):
        expected = rows.values @ reference.T
        difference = torch.addmm(expected, quantized_rows, other.T, alpha=-1.0)
        error += float(rows.weights @ difference.square_().sum(dim=1))
        output += float(rows.weights @ expected.square_().sum(dim=1))
    if output == 0.0:
        return 0.0 if error == 0.0 else 1.0
    return error / output
