"""Roundings and nonlinearities as Triton device functions.

The rules are those of ``formats``, bit for bit: exact float32 divisions, to nearest with ties to the even
code, saturation. Activations are float32 inside a kernel and rounded where the definition of an op rounds.
Knows numbers; knows no tensor in memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ocrquant.formats import precision
from ocrquant.kernels.triton_common.launch import repair_if_interpreted

__all__ = [
    "e2m1_codes",
    "e2m1_pairs",
    "e4m3_codes",
    "log1p",
    "magnitude",
    "reciprocal_root",
    "rounded",
    "sigmoid",
    "silu",
    "softplus",
]

repair_if_interpreted()

E2M1_MAX = tl.constexpr(precision.E2M1_MAX)
# 1.5 * 2**22 grid steps of E2M1 in the binade of 1: see formats.rounding.
_E2M1_SNAP = tl.constexpr(1.5 * 2.0**22)
# Sign, exponent and first mantissa bit of that number: what lies above the counted steps.
_E2M1_LEAD = tl.constexpr(299)
_EXPONENT = tl.constexpr(0x7F800000)
_ONE_BITS = tl.constexpr(0x3F800000)
_FOUR_BITS = tl.constexpr(0x40800000)
_SOFTPLUS_LINEAR = tl.constexpr(20.0)
"""Above it softplus is the identity, as in torch."""


@triton.jit
def rounded(x):
    """Float32 values rounded to bf16 and back."""
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def magnitude(x):
    """Bits of |x| as int32: they order like the magnitudes, NaN above infinity."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def sigmoid(x):
    """Sigmoid, 1 / (1 + e^-x)."""
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    """SiLU, x / (1 + e^-x)."""
    return tl.div_rn(x, 1.0 + tl.exp(-x))


@triton.jit
def reciprocal_root(x):
    """1 / sqrt(x), both rounded to nearest; for the few numbers that belong to a whole row or head."""
    return tl.div_rn(1.0, tl.sqrt_rn(x))


@triton.jit
def log1p(x):
    """log(1 + x) for x >= 0, right for small x too: the rounding of 1 + x is divided out."""
    above = 1.0 + x
    return tl.where(above == 1.0, x, tl.log(above) * tl.div_rn(x, tl.where(above == 1.0, 1.0, above - 1.0)))


@triton.jit
def softplus(x):
    """log(1 + e^x), x itself above 20."""
    is_linear = x > _SOFTPLUS_LINEAR
    return tl.where(is_linear, x, log1p(tl.exp(tl.where(is_linear, 0.0, x))))


@triton.jit
def e4m3_codes(x):
    """E4M3 codes as uint8; saturates, and NaN is 0x7F."""
    return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def e2m1_codes(x):
    """E2M1 codes 0 to 15 as int32 in integer maths; NaN has the code of +6."""
    bounded = tl.abs(x)
    bounded = tl.where(bounded < E2M1_MAX, bounded, E2M1_MAX)
    power = bounded.to(tl.int32, bitcast=True) & _EXPONENT
    power = tl.minimum(tl.maximum(power, _ONE_BITS), _FOUR_BITS)
    snapped = (bounded + power.to(tl.float32, bitcast=True) * _E2M1_SNAP).to(tl.int32, bitcast=True)
    code = (snapped & 7) + (snapped >> 22) - _E2M1_LEAD
    sign = (x.to(tl.int32, bitcast=True) >> 28) & 8
    return tl.where(x == x, code | sign, code)


@triton.jit
def e2m1_pairs(low, high, CONVERTS: tl.constexpr):
    """Two E2M1 codes a byte, uint8.

    CONVERTS says that the processor has ``cvt.rn.satfinite.e2m1x2.f32`` (Blackwell); others, and the
    interpreter, count in integers. Four pairs go into one register.
    """
    if CONVERTS:
        return tl.inline_asm_elementwise(
            """{
            .reg .b8 pair0, pair1, pair2, pair3;
            cvt.rn.satfinite.e2m1x2.f32 pair0, $5, $1;
            cvt.rn.satfinite.e2m1x2.f32 pair1, $6, $2;
            cvt.rn.satfinite.e2m1x2.f32 pair2, $7, $3;
            cvt.rn.satfinite.e2m1x2.f32 pair3, $8, $4;
            mov.b32 $0, {pair0, pair1, pair2, pair3};
            }""",
            "=r,r,r,r,r,r,r,r,r",
            [low, high],
            dtype=tl.uint8,
            is_pure=True,
            pack=4,
        )
    else:
        return (e2m1_codes(low) | (e2m1_codes(high) << 4)).to(tl.uint8)
