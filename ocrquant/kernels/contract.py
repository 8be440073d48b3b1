"""Checks of an op's arguments: dtype, shape by symbols, layout, device.

A shape is written as in a docstring, ``"R w"`` or ``"slots H 64 V"``. A symbol is bound where it first
appears and compared afterwards. Knows tensors; knows no op.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.errors import ShapeError

__all__ = ["Contract"]

I32 = torch.int32


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
        expected = shape.split()
        if tensor.ndim != len(expected):
            self._refuse(name, f"shape [{', '.join(expected)}]", list(tensor.shape))
        for symbol, size in zip(expected, tensor.shape, strict=True):
            wanted = int(symbol) if symbol.isdigit() else self.sizes.setdefault(symbol, size)
            if size != wanted:
                known = "" if symbol.isdigit() else f" with {symbol} = {wanted}"
                self._refuse(name, f"shape [{', '.join(expected)}]{known}", list(tensor.shape))
        if dtype is not None and tensor.dtype not in (dtype if isinstance(dtype, tuple) else (dtype,)):
            names = [str(d) for d in (dtype if isinstance(dtype, tuple) else (dtype,))]
            self._refuse(name, " or ".join(names), tensor.dtype)
        is_dense = tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 if tensor.ndim else True
        if not (is_dense if strided else tensor.is_contiguous()):
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
