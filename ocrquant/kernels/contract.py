"""Checks of an op's arguments: dtype, shape by symbols, layout, device.

A shape is written as in a docstring, ``"R w"`` or ``"slots H 64 V"``. A symbol is bound where it first
appears and compared afterwards. Knows tensors; knows no op.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ocrquant.errors import ShapeError

__all__ = ["Contract"]

I32 = torch.int32


@lru_cache(maxsize=1024)
def _symbols(shape: str) -> tuple[str | int, ...]:
    """A shape's symbols, numbers as such. Kept, since an op checks the same few shapes at every call."""
    return tuple(int(symbol) if symbol.isdigit() else symbol for symbol in shape.split())


class Contract:
    """The arguments of one call.

    Args:
        op: Name of the op, for errors.
        sizes: Values of symbols that are known beforehand.
    """

    __slots__ = ("_device", "_op", "sizes")

    def __init__(self, op: str, **sizes: int) -> None:
        self._op = op
        self._device: torch.device | None = None
        self.sizes = sizes

    def tensor(
        self,
        name: str,
        tensor: Tensor,
        shape: str,
        dtype: torch.dtype | tuple[torch.dtype, ...] | None,
        *,
        strided: bool = False,
    ) -> None:
        """Checks one argument.

        Args:
            name: Its name.
            tensor: Its value.
            shape: Symbols and numbers, separated by blanks.
            dtype: What it may be; None for any.
            strided: Whether other strides than those of a contiguous tensor are allowed; the last dimension
                is always dense.

        Raises:
            ShapeError: It is not as the contract says.
        """
        expected, sizes, given = _symbols(shape), self.sizes, tensor.shape
        if len(given) != len(expected):
            self._refuse(name, f"shape [{', '.join(map(str, expected))}]", list(given))
        for symbol, size in zip(expected, given, strict=True):
            wanted = symbol if isinstance(symbol, int) else sizes.setdefault(symbol, size)
            if size != wanted:
                known = "" if isinstance(symbol, int) else f" with {symbol} = {wanted}"
                self._refuse(name, f"shape [{', '.join(map(str, expected))}]{known}", list(given))
        if dtype is not None and tensor.dtype is not dtype:
            allowed = dtype if isinstance(dtype, tuple) else (dtype,)
            if tensor.dtype not in allowed:
                self._refuse(name, " or ".join(map(str, allowed)), tensor.dtype)
        if not tensor.is_contiguous():
            is_dense = strided and (tensor.stride(-1) == 1 or given[-1] <= 1)
            if not is_dense:
                layout = "a dense last dimension" if strided else "a contiguous tensor"
                self._refuse(name, layout, f"strides {list(tensor.stride())}")
        if self._device is None:
            self._device = tensor.device
        elif tensor.device != self._device:
            self._refuse(name, f"device {self._device}", tensor.device)

    def require(self, condition: bool, name: str, expected: object, given: object) -> None:
        """Refuses an argument for any other reason.

        Raises:
            ShapeError: The condition is false.
        """
        if not condition:
            self._refuse(name, expected, given)

    def _refuse(self, name: str, expected: object, given: object) -> None:
        raise ShapeError(
            f"op {self._op}: {name}", expected=expected, given=given, fix="pass what the op's docstring says"
        )
