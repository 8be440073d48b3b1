"""Casts of Triton's interpreter, put right.

Triton 3.9's interpreter truncates float32 to bfloat16 (447 becomes 446) and converts wrongly to E4M3 at the
edges (500 becomes 256, NaN 384, 0.001 zero). Compiled code converts as the hardware does. `repair` gives the
interpreter the same conversions, so that what a test sees is what a GPU computes: to nearest with ties to the
even code, E4M3 saturated (``cvt.rn.bf16.f32`` and ``cvt.rn.satfinite.e4m3x2.f32`` of the PTX manual). It also
lets a launch prepare the language once instead of at every call of a device function, which took most of the
interpreter's time. Knows bit patterns; knows no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

from ocrquant.errors import DeviceError
from ocrquant.formats.precision import E4M3_MAX

__all__ = ["repair"]

Array = npt.NDArray[Any]

_BF16_NAN = np.uint32(0x7FC0)
_E4M3_NAN = np.uint32(0x7F)
_INFINITY = np.uint32(0x7F800000)


def _float32_to_bf16(values: Array) -> Array:
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > _INFINITY
    return np.where(is_nan, _BF16_NAN, rounded).astype(np.uint16)


def _bf16_to_float32(codes: Array) -> Array:
    return (codes.astype(np.uint32) << 16).view(np.float32)


def _float32_to_e4m3(values: Array) -> Array:
    # As formats.rounding: the float32 adder rounds to the grid's step, that of the binade or of 2**-6.
    bits = values.view(np.uint32)
    largest = np.float32(E4M3_MAX)
    magnitude = np.fmin((bits & np.uint32(0x7FFFFFFF)).view(np.float32), largest)  # NaN is put in at the end
    power = np.clip(magnitude.view(np.uint32) & _INFINITY, 0x3C800000, 0x43800000).astype(np.uint32)
    snapped = (magnitude + power.view(np.float32) * np.float32(1.5 * 2**20)).view(np.uint32)
    codes = (power >> 20) - np.uint32(121 * 8) + (snapped & np.uint32(31))
    signed = codes | ((bits >> 24) & np.uint32(0x80))
    return np.where(np.isnan(values), _E4M3_NAN, signed).astype(np.uint8)


def _e4m3_to_float32(codes: Array) -> Array:
    wide = codes.astype(np.uint32)
    magnitude = ((wide & 0x7F) << 20).view(np.float32) * np.float32(2.0**120)
    values = np.where((wide & 0x7F) == _E4M3_NAN, np.float32(np.nan), magnitude)
    return np.where(wide & 0x80, -values, values).astype(np.float32)


def _pairs() -> dict[tuple[Any, Any], Callable[[Array], Array]]:
    bf16, e4m3, wide = tl.bfloat16, tl.float8e4nv, tl.float32
    return {
        (wide, bf16): _float32_to_bf16,
        (bf16, wide): _bf16_to_float32,
        (wide, e4m3): _float32_to_e4m3,
        (e4m3, wide): _e4m3_to_float32,
        (bf16, e4m3): lambda codes: _float32_to_e4m3(_bf16_to_float32(codes)),
        (e4m3, bf16): lambda codes: _float32_to_bf16(_e4m3_to_float32(codes)),
    }


class _Preparation:
    """The language as the interpreter prepares it for one launch: each module of it once."""

    def __init__(self, prepare: Callable[[Any], Any]) -> None:
        self._prepare = prepare
        self._scopes: list[Any] = []
        self._prepared: set[int] = set()

    def __call__(self, function: Any) -> _Preparation:
        languages = {id(x) for x in function.__globals__.values() if x is tl or x is tl.core}
        if not languages <= self._prepared:
            self._scopes.append(self._prepare(function))
            self._prepared |= languages
        return self

    def restore(self) -> None:
        """Ends the launch. The interpreter calls this for the launch only, never for a device function."""
        while self._scopes:
            self._scopes.pop().restore()
        self._prepared.clear()


def repair() -> None:
    """Replaces the interpreter's conversions between float32, bfloat16 and E4M3; once a process.

    Raises:
        DeviceError: This version of Triton converts in another place.
    """
    names = ("_convert_float", "_patch_lang")
    if missing := [name for name in names if not hasattr(interpreter, name)]:
        raise DeviceError(
            "Triton's interpreter",
            expected=f"triton 3.9, whose interpreter has {' and '.join(names)}",
            given=f"a version without {missing[0]}",
            fix="install the version that pyproject.toml names",
        )
    if isinstance(interpreter._patch_lang, _Preparation):
        return
    interpreter._patch_lang = _Preparation(interpreter._patch_lang)
    original, conversions = interpreter._convert_float, _pairs()
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def convert(values: Array, source: Any, target: Any, rounding_mode: Any) -> Array:
        conversion = conversions.get((source, target))
        if conversion is None or rounding_mode == toward_zero:
            return original(values, source, target, rounding_mode)  # type: ignore[no-any-return]
        return conversion(np.ascontiguousarray(values)).reshape(values.shape)

    interpreter._convert_float = convert
