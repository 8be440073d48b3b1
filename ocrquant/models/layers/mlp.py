"""The gated MLP: one product for gate and up, SiLU times up, one product down."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.silu_mul import silu_mul
from ocrquant.models.layers.linear import LinearFactory
from ocrquant.models.workspace import Scratch, Workspace

__all__ = ["Mlp"]


class Mlp:
    """The MLP of a decoder layer.

    Args:
        workspace: Scratch rows.
        linears: Makes the products.
        prefix: Name of the module in the checkpoint.
        product: Name of the layer in the table of products.
        reads: Name of the operand that it reads.
        hidden: Width of the residual stream.
        inner: Width between the products.
        bias: Whether the linears have biases.
    """

    def __init__(
        self,
        workspace: Workspace,
        linears: LinearFactory,
        prefix: str,
        product: str,
        *,
        reads: str,
        hidden: int,
        inner: int,
        bias: bool = False,
    ) -> None:
        members = [(f"{prefix}.gate_proj", inner), (f"{prefix}.up_proj", inner)]
        self.gate_up = linears.make(f"{product}.gate_up", reads, members, hidden, bias=bias)
        down = [(f"{prefix}.down_proj", hidden)]
        self._down = linears.make(f"{product}.down", "mlp.inner", down, inner, bias=bias)
        self._gate_up_rows = workspace.slot("mlp.gate_up", 2 * inner)
        self._inner = linears.operand("mlp.inner", inner, self._down)

    def __call__(self, scratch: Scratch, out: Tensor) -> None:
        """Computes it from the operand that it reads.

        Args:
            scratch: Scratch rows.
            out: [R, hidden], written.
        """
        gate_up = scratch.rows(self._gate_up_rows)
        self.gate_up(scratch, gate_up)
        silu_mul(gate_up, scratch.operand(self._inner))
        self._down(scratch, out)
