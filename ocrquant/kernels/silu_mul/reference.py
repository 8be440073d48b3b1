"""Plain torch definition of ``silu_mul``."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ocrquant.kernels.emit import emit, wide
from ocrquant.kernels.operand import Operand


def silu_mul_reference(gate_up: Tensor, out: Operand) -> None:
    """The middle of a gated MLP, written as an operand.

    ``y = round(round(silu(gate)) * up)``, silu in float32: the unfused pair of Hugging Face's MLPs, with
    both casts. Then ``kernels.emit``.

    Args:
        gate_up: A[R, 2 i], row stride free; gate is the first half.
        out: Operand of R rows and width i.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    emit(F.silu(wide(gate)).to(gate.dtype) * up, out)
