"""A Gated DeltaNet layer (arXiv 2412.06464) around its recurrence: products, the gated norm, the output.

Knows the order of columns (q | k | v | z and b | a). Convolution, recurrence and the states belong to whoever
keeps the states; see ``models.step.StateLayers``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.errors import ModelError
from ocrquant.kernels.gated_rms_norm import gated_rms_norm
from ocrquant.models.layers.linear import LinearFactory
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import Caches, DeltaInputs, Step
from ocrquant.models.weights import WeightReader
from ocrquant.models.workspace import Scratch, Workspace

__all__ = ["GatedDeltaNet"]


class GatedDeltaNet:
    """A Gated DeltaNet layer.

    Args:
        reader: The checkpoint.
        workspace: Scratch rows.
        linears: Makes the products.
        prefix: Name of the module in the checkpoint.
        product: Name of the layer in the table of products.
        index: Number among the Gated DeltaNet layers.
        spec: Heads and widths.
        reads: Name of the operand that it reads.
        hidden: Width of the residual stream.
        eps: Of the gated norm.
    """

    def __init__(
        self,
        reader: WeightReader,
        workspace: Workspace,
        linears: LinearFactory,
        prefix: str,
        product: str,
        *,
        index: int,
        spec: StateSpec,
        reads: str,
        hidden: int,
        eps: float,
    ) -> None:
        self._index = index
        self._spec = spec
        self._eps = eps
        channels, heads = spec.conv_channels, spec.value_heads
        inner = heads * spec.value_dim
        members = [(f"{prefix}.in_proj_qkv", channels), (f"{prefix}.in_proj_z", inner)]
        self.qkvz = linears.make(f"{product}.qkvz", reads, members, hidden)
        members = [(f"{prefix}.in_proj_b", heads), (f"{prefix}.in_proj_a", heads)]
        self.ba = linears.make(f"{product}.ba", reads, members, hidden)
        self._out = linears.make(f"{product}.out", "gdn.gated", [(f"{prefix}.out_proj", hidden)], inner)
        self._gated = linears.operand("gdn.gated", inner, self._out)
        self._conv_weight = reader.take(f"{prefix}.conv1d.weight", (channels, 1, spec.conv_taps))[:, 0]
        # float32 as stored; transformers rounds these two to the dtype of activations when it loads a model.
        self._a_log = reader.take(f"{prefix}.A_log", (heads,), torch.float32)
        self._dt_bias = reader.take(f"{prefix}.dt_bias", (heads,), torch.float32)
        self._norm = reader.take(f"{prefix}.norm.weight", (spec.value_dim,)).to(torch.float32)
        self._qkvz_rows = workspace.slot("gdn.qkvz", channels + inner)
        self._mixed = workspace.part(self._qkvz_rows, lambda x: x[:, :channels])
        self._z = workspace.part(self._qkvz_rows, lambda x: x[:, channels:])
        self._ba_rows = workspace.slot("gdn.ba", 2 * heads)
        self._b = workspace.part(self._ba_rows, lambda x: x[:, :heads])
        self._a = workspace.part(self._ba_rows, lambda x: x[:, heads:])
        self._core = workspace.slot("gdn.core", inner)

    def __call__(self, scratch: Scratch, step: Step, caches: Caches, out: Tensor) -> None:
        """Moves this layer's states on over the rows of the step.

        Args:
            scratch: Scratch rows, with the operand.
            step: The step.
            caches: The past; this layer's states change.
            out: [R, hidden], written.

        Raises:
            ModelError: There are no states.
        """
        if caches.state is None:
            fix = "make room for states"
            raise ModelError("Gated DeltaNet layer", expected="recurrent states", given="none", fix=fix)
        spec, core = self._spec, scratch.rows(self._core)
        self.qkvz(scratch, scratch.rows(self._qkvz_rows))
        self.ba(scratch, scratch.rows(self._ba_rows))
        inputs = DeltaInputs(
            mixed=scratch.part(self._mixed),
            a=scratch.part(self._a),
            b=scratch.part(self._b),
            conv_weight=self._conv_weight,
            a_log=self._a_log,
            dt_bias=self._dt_bias,
            key_heads=spec.key_heads,
            value_heads=spec.value_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
        )
        caches.state.advance(self._index, inputs, step.state, core)
        gated_rms_norm(core, scratch.part(self._z), self._norm, self._eps, scratch.operand(self._gated))
        self._out(scratch, out)
