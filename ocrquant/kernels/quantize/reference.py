"""Plain torch definition of ``quantize``."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.emit import emit
from ocrquant.kernels.operand import Operand


def quantize_reference(x: Tensor, out: Operand) -> None:
    """Writes rows into every form of an operand, see ``kernels.emit``.

    Args:
        x: A[R, w], row stride free.
        out: Operand of R rows and width w; its plain form may be ``x`` itself.
    """
    emit(x, out)
