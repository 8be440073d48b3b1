"""Reads a buffer once: the yardstick of kernels that are bound by memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.read_memory.native import read_memory_native
from ocrquant.kernels.read_memory.reference import read_memory_reference
from ocrquant.kernels.selection import use_native

__all__ = ["read_memory"]


def read_memory(data: Tensor, out: Tensor) -> None:
    """See `read_memory_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("read_memory")
    contract.tensor("data", data, "words", torch.int64)
    contract.tensor("out", out, "1", torch.int64)
    (read_memory_native if use_native("read_memory", data, (torch.int64,)) else read_memory_reference)(
        data, out
    )
