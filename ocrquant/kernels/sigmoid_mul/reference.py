"""Plain torch definition of ``sigmoid_mul``."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.emit import emit, wide
from ocrquant.kernels.operand import Operand


def sigmoid_mul_reference(x: Tensor, qg: Tensor, out: Operand) -> None:
    """The output gate of an attention layer, written as an operand.

    ``y = round(x * round(sigmoid(gate)))``, sigmoid in float32. Then ``kernels.emit``.

    Args:
        x: A[R, heads * hd], row stride free.
        qg: A[R, heads, 2 * hd], what the query projection wrote, query and gate side by side in each head;
            the gate is the second half. Row and head stride free.
        out: Operand of R rows and width heads * hd.
    """
    gate = qg.chunk(2, dim=-1)[1].flatten(1)
    emit(x * torch.sigmoid(wide(gate)).to(x.dtype), out)
