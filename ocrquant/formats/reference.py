"""The formats written straight from their definitions, slow and obvious: the oracle of the tests.

Everything is Python arithmetic on exact values; a float32 product or quotient is rounded where the definition
rounds it. Nothing in the package calls this module.

Sources: OCP "8-bit Floating Point Specification" for E4M3, OCP "Microscaling Formats" v1.0 for E2M1.
"""

from __future__ import annotations

import math
import struct

__all__ = ["E2M1_GRID", "E4M3_GRID", "decode_nvfp4_block", "encode_nvfp4_block", "float32", "nearest_code"]


def _grid(exponent_bits: int, mantissa_bits: int, bias: int, num_codes: int) -> tuple[float, ...]:
    """Values of the non-negative codes, in order."""
    values = []
    for code in range(num_codes):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        assert exponent < 2**exponent_bits
        fraction = mantissa / 2**mantissa_bits
        if exponent == 0:
            values.append(2.0 ** (1 - bias) * fraction)
        else:
            values.append(2.0 ** (exponent - bias) * (1.0 + fraction))
    return tuple(values)


E2M1_GRID = _grid(exponent_bits=2, mantissa_bits=1, bias=1, num_codes=8)
E4M3_GRID = _grid(exponent_bits=4, mantissa_bits=3, bias=7, num_codes=127)
"""Without the 128th code, which is NaN."""


def nearest_code(value: float, grid: tuple[float, ...]) -> int:
    """Code of the nearest grid magnitude, ties to the even code, beyond the last one the last; no sign bit.

    ``value`` is any float but NaN. Distances are exact: the operands are float32 or coarser, the arithmetic
    is float64.
    """
    magnitude = min(abs(value), grid[-1])
    distances = [abs(magnitude - point) for point in grid]
    closest = min(distances)
    candidates = [code for code, distance in enumerate(distances) if distance == closest]
    return next((code for code in candidates if code % 2 == 0), candidates[0])


def float32(value: float) -> float:
    """``value`` rounded to float32, which is what one float32 operation on exact operands gives."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def encode_nvfp4_block(block: list[float], encode_scale: float) -> tuple[float, list[int]]:
    """Block scale (an E4M3 value) and 4-bit codes of one block of 16 float32 values.

    Scale: ``E4M3(G * (amax / 6))``, at least the smallest E4M3 number. Codes: ``E2M1(x / (scale / G))``.
    """
    amax = max(abs(value) for value in block)
    unrounded = float32(encode_scale * float32(amax / E2M1_GRID[-1]))
    scale = max(E4M3_GRID[nearest_code(unrounded, E4M3_GRID)], E4M3_GRID[1])
    divisor = float32(scale / encode_scale)
    codes = []
    for value in block:
        sign = 8 if math.copysign(1.0, value) < 0 else 0
        codes.append(sign + nearest_code(float32(value / divisor), E2M1_GRID))
    return scale, codes


def decode_nvfp4_block(codes: list[int], scale: float, encode_scale: float) -> list[float]:
    """Values of one block: ``code * (scale / G)`` in float32."""
    multiplier = float32(scale / encode_scale)
    return [float32((-1.0 if code & 8 else 1.0) * E2M1_GRID[code & 7] * multiplier) for code in codes]
