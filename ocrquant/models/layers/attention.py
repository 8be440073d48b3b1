"""Full attention over a paged cache: one product for q, k and v, head norms, rotary, maybe an output gate.

Knows heads and the order of columns. Does not know pages beyond handing the step's metadata on.
"""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.attention_inputs import attention_inputs
from ocrquant.kernels.paged_attention import paged_attention
from ocrquant.kernels.quantize import quantize
from ocrquant.kernels.sigmoid_mul import sigmoid_mul
from ocrquant.models.layers.linear import LinearFactory
from ocrquant.models.layers.norm import RmsNorm
from ocrquant.models.layers.rotary import Rotary
from ocrquant.models.spec import AttentionSpec
from ocrquant.models.step import Caches, Step
from ocrquant.models.workspace import PartSlot, Scratch, Workspace

__all__ = ["Attention"]


class Attention:
    """An attention layer.

    Args:
        workspace: Scratch rows.
        linears: Makes the products.
        prefix: Name of the module in the checkpoint.
        product: Name of the layer in the table of products.
        index: Number among the layers with keys and values.
        spec: Heads and widths.
        rotary: The step's table of rotary positions.
        reads: Name of the operand that it reads.
        hidden: Width of the residual stream.
        gated: Whether the query's product holds a gate beside each head's query (Qwen3.5).
        norms: Norms of query and key heads; None where the model has none.
        bias: Whether the linears have biases.
    """

    def __init__(
        self,
        workspace: Workspace,
        linears: LinearFactory,
        prefix: str,
        product: str,
        *,
        index: int,
        spec: AttentionSpec,
        rotary: Rotary,
        reads: str,
        hidden: int,
        gated: bool,
        norms: tuple[RmsNorm, RmsNorm] | None,
        bias: bool,
    ) -> None:
        self._index = index
        self._rotary = rotary
        self._gated = gated
        self._norms = norms
        self._scale = float(spec.head_dim) ** -0.5
        inner = spec.heads * spec.head_dim
        query, key = inner * (2 if gated else 1), spec.kv_heads * spec.head_dim
        members = [(f"{prefix}.q_proj", query), (f"{prefix}.k_proj", key), (f"{prefix}.v_proj", key)]
        self.qkv = linears.make(f"{product}.qkv", reads, members, hidden, bias=bias)
        self._out = linears.make(
            f"{product}.o", "attention.mixed", [(f"{prefix}.o_proj", hidden)], inner, bias=bias
        )
        self._mixed = linears.operand("attention.mixed", inner, self._out)
        self._rows(workspace, spec, query, key)

    def _rows(self, workspace: Workspace, spec: AttentionSpec, query: int, key: int) -> None:
        """Names the scratch rows and the views into them."""
        heads, width = spec.heads, spec.head_dim

        def heads_of(begin: int, end: int, count: int) -> PartSlot:
            return workspace.part(self._qkv_rows, lambda x: x[:, begin:end].unflatten(1, (count, -1)))

        self._qkv_rows = workspace.slot("attention.qkv", query + 2 * key)
        self._query = workspace.part(
            self._qkv_rows, lambda x: x[:, :query].unflatten(1, (heads, -1))[..., :width]
        )
        self._query_gate = heads_of(0, query, heads)
        self._key = heads_of(query, query + key, spec.kv_heads)
        self._value = heads_of(query + key, query + 2 * key, spec.kv_heads)
        self._attended = workspace.slot("attention.out", heads * width)
        rotated = workspace.slot("attention.query", heads * width)
        self._rotated = workspace.part(rotated, lambda x: x.unflatten(1, (heads, -1)))

    def __call__(self, scratch: Scratch, step: Step, caches: Caches, out: Tensor) -> None:
        """Writes this step's keys and values and attends to all of them.

        Args:
            scratch: Scratch rows, with the operand and the rotary table of the step.
            step: The step.
            caches: The past; this layer's pages change.
            out: [R, hidden], written.
        """
        layer, meta = self._index, step.attention
        keys, values = caches.k[layer], caches.v[layer]
        k_scale, v_scale = caches.k_scales[layer], caches.v_scales[layer]
        query, mixed = scratch.part(self._rotated), scratch.operand(self._mixed)
        in_place = not self._gated and mixed.plain is not None
        attended = mixed.plain if in_place else scratch.rows(self._attended)
        assert attended is not None
        q_norm, k_norm = self._norms or (None, None)
        self.qkv(scratch, scratch.rows(self._qkv_rows))
        attention_inputs(
            scratch.part(self._query),
            scratch.part(self._key),
            scratch.part(self._value),
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
            0.0 if q_norm is None else q_norm.eps,
            scratch.rows(self._rotary.cos),
            scratch.rows(self._rotary.sin),
            meta.slot_mapping,
            query,
            keys,
            values,
            k_scale=k_scale,
            v_scale=v_scale,
        )
        paged_attention(
            query,
            keys,
            values,
            meta.page_table,
            meta.q_start,
            meta.kv_len,
            self._scale,
            attended,
            k_scale=k_scale,
            v_scale=v_scale,
        )
        if self._gated:
            sigmoid_mul(attended, scratch.part(self._query_gate), mixed)
        elif not in_place or mixed.fp8 is not None or mixed.nvfp4 is not None:
            quantize(attended, mixed)
        self._out(scratch, out)
