"""Operands and weights for the tests of linears."""

import torch

from ocrquant.formats import fp8, nvfp4
from ocrquant.formats.nvfp4_scales import global_encode_scale
from ocrquant.formats.precision import Precision
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.operand import Operand

BF16, BYTE = torch.bfloat16, torch.uint8
# Precision of the weight, and whether the rows are in its codes.
COMBINATIONS = [
    (Precision.BF16, False),
    (Precision.FP8, True),
    (Precision.FP8, False),
    (Precision.NVFP4, True),
    (Precision.NVFP4, False),
]


def make_weight(precision, out_features, in_features, seed=0, scale=1.0):
    weight = torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(seed)) * scale
    if precision is Precision.BF16:
        return weight.to(BF16)
    if precision is Precision.NVFP4:
        return nvfp4.quantize(weight)
    decode_scale = fp8.weight_decode_scale(weight, "channel")
    return FP8Weight(codes=fp8.encode(weight, decode_scale), decode_scale=decode_scale)


def make_rows(rows, width, seed=1):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(BF16)


def quantized(x, precision):
    """Rows in the codes of a precision."""
    if precision is Precision.BF16:
        return Operand(plain=x)
    if precision is Precision.FP8:
        scale = fp8.token_decode_scale(x)
        return Operand(fp8=fp8.encode(x, scale).view(BYTE), fp8_scale=scale.flatten())
    encode_scale = global_encode_scale(x.abs().amax() if x.numel() else torch.ones(1))
    block_scale = nvfp4.block_decode_scale(x, encode_scale)
    codes = nvfp4.pack(nvfp4.encode(x, block_scale, encode_scale))
    return Operand(nvfp4=codes, nvfp4_scale=block_scale.view(BYTE), encode_scale=encode_scale)


def make_operand(x, precision, in_codes):
    return quantized(x, precision) if in_codes else Operand(plain=x)


def row(operand, index):
    """One row of an operand, alone and contiguous."""
    parts = {
        name: value if value is None or name == "encode_scale" else value[index : index + 1].clone()
        for name in ("plain", "fp8", "fp8_scale", "nvfp4", "nvfp4_scale", "encode_scale")
        for value in [getattr(operand, name)]
    }
    return Operand(**parts)
