"""One safetensors file, each tensor read on its own straight into memory of its own.

A map of the file counts every page that was ever read as resident for as long as it is open: a process that
looks at each tensor once would take as much memory as the file. Reading into the tensor's own memory takes
the tensor and nothing else. Knows the layout (8 bytes length, JSON, data;
https://huggingface.co/docs/safetensors#format) and dtypes; knows no model.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["TensorFile"]

_DTYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "BOOL": "bool",
}
"""Name in a header -> attribute of torch."""

_PIECE_BYTES = 16 << 20
"""What is read at a time where the dtype changes on the way."""


class TensorFile:
    """Reader of one file; use as a context manager, or close it.

    Args:
        path: The file.

    Raises:
        OSError: The file cannot be opened.
        ValueError: Its header is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        try:
            (length,) = struct.unpack("<Q", os.pread(self._descriptor, 8, 0))
            self._entries: dict[str, Any] = json.loads(os.pread(self._descriptor, length, 8))
        except (struct.error, OverflowError) as error:
            self.close()
            raise ValueError(f"{path} has no safetensors header") from error
        except BaseException:
            self.close()
            raise
        self._entries.pop("__metadata__", None)
        self._start = 8 + length

    def names(self) -> list[str]:
        """All tensors, in the order of the header."""
        return list(self._entries)

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor on the CPU, in the dtype in which it is stored or in another one.

        Args:
            name: One of `names`.
            dtype: What to convert to while reading; the stored dtype when left out.

        Raises:
            KeyError: There is no such tensor.
            OSError: The file ends before the tensor does, or cannot be read.
        """
        import torch

        stored, shape, offset = self._place(name)
        tensor = torch.empty(shape, dtype=dtype or stored)
        flat = tensor.reshape(-1)
        if flat.dtype is stored:
            self._fill(flat, offset)
            return tensor
        piece = torch.empty(min(flat.numel(), _PIECE_BYTES // stored.itemsize), dtype=stored)
        for first in range(0, flat.numel(), max(1, piece.numel())):
            part = piece[: flat.numel() - first]
            self._fill(part, offset + first * stored.itemsize)
            flat[first : first + part.numel()] = part
        return tensor

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Some rows [n, ...] of a tensor [rows, ...], in the dtype in which it is stored.

        Raises:
            KeyError: There is no such tensor.
            IndexError: There is no such row.
            OSError: The file cannot be read.
        """
        import torch

        stored, (count, *shape), offset = self._place(name)
        found = torch.empty((len(rows), *shape), dtype=stored)
        for place, row in enumerate(rows):
            if not 0 <= row < count:
                raise IndexError(f"row {row} of {count} in {name}")
            into = found[place].reshape(-1)
            self._fill(into, offset + row * into.nbytes)
        return found

    def read_part(self, name: str, index: int, first: int, count: int) -> Tensor:
        """Some rows [count, ...] of one part of a tensor [parts, rows, ...], in the dtype of the file.

        Raises:
            KeyError: There is no such tensor.
            IndexError: There is no such part, or it has fewer rows.
            OSError: The file cannot be read.
        """
        import torch

        stored, (parts, rows, *shape), offset = self._place(name)
        if not (0 <= index < parts and 0 <= first <= first + count <= rows):
            raise IndexError(f"rows {first} to {first + count} of part {index} in {name} {[parts, rows]}")
        found = torch.empty((count, *shape), dtype=stored)
        row_bytes = found.nbytes // max(1, count)
        self._fill(found.reshape(-1), offset + (index * rows + first) * row_bytes)
        return found

    def close(self) -> None:
        """Closes the file; tensors already read stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _place(self, name: str) -> tuple[torch.dtype, tuple[int, ...], int]:
        """Dtype, shape and first byte of a tensor."""
        import torch

        entry = self._entries[name]
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name} in {self.path} is stored as {entry['dtype']}")
        dtype: torch.dtype = getattr(torch, _DTYPES[entry["dtype"]])
        return dtype, tuple(entry["shape"]), self._start + int(entry["data_offsets"][0])

    def _fill(self, flat: Tensor, offset: int) -> None:
        """Reads the bytes of a contiguous tensor [n] from a place in the file."""
        import torch

        if not flat.numel():
            return
        left = flat.view(torch.uint8).numpy().data
        while left:
            # One call reads 2 GiB at most.
            count = os.preadv(self._descriptor, [left], offset)
            if count == 0:
                raise OSError(f"{self.path} ends at byte {offset}, in the middle of a tensor")
            left, offset = left[count:], offset + count
