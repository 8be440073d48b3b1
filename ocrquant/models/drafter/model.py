"""A drafter in the ops of the runtime: keys and values of the context on the way, blocks of drafts at once.

`project` turns the features of every row that the target computes into keys and values of all draft layers,
where the row's own keys go: rows that are undone later are written over like those of the target. `draft`
guesses the blocks of all requests in one pass; what it writes behind the context counts for this pass only.
Both touch memory that was there before and launch ops, so that they can be recorded.

Source: arXiv 2602.06036; DFlash2 as ``ocrquant.drafter.convolution`` and ``selector`` say.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.attention_inputs import attention_inputs
from ocrquant.kernels.linear import PackedWeight, linear, pack
from ocrquant.kernels.local_convolution import local_convolution
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.paged_attention import paged_attention
from ocrquant.kernels.rms_norm import rms_norm
from ocrquant.kernels.rope_table import rope_table
from ocrquant.kernels.silu_mul import silu_mul
from ocrquant.models.decoder import Decoder
from ocrquant.models.drafter.blocks import DraftBlocks
from ocrquant.models.drafter.choice import Choice
from ocrquant.models.drafter.config import DrafterConfig
from ocrquant.models.drafter.layers import (
    AFTER,
    BEFORE,
    Convolution,
    LayerWeights,
    layer_weights,
    norm_weight,
)
from ocrquant.models.layers.rotary import inverse_frequencies
from ocrquant.models.weights import WeightReader, WeightSource
from ocrquant.models.workspace import Scratch, Workspace

__all__ = ["Drafter"]


class Drafter:
    """A drafter beside its target.

    Args:
        config: Its sizes.
        weights: Its tensors, by the names of ``ocrquant.drafter.model.DraftModel``.
        target: Gives features, embeddings and the head; its scratch buffers are made, and it taps the layers
            that the drafter reads from now on.
        num_pages: Pages of keys and values.
        page_size: Tokens of a page.

    Raises:
        ModelError: The target has no such layers, or a tensor is missing, unexpected or of another shape.

    Attributes:
        config: Its sizes.
        keys: A[layers, pages, page_size, kv_heads, head_dim].
        values: The same.
    """

    def __init__(
        self, config: DrafterConfig, weights: WeightSource, target: Decoder, *, num_pages: int, page_size: int
    ) -> None:
        space = Workspace(target.feature_rows.dtype, target.feature_rows.device)
        reader = WeightReader(weights, space.dtype, space.device)
        self.config, self._target, self._space = config, target, space
        hidden, width, taps = config.hidden_size, config.head_dim, len(config.target_layer_ids)
        target.tap(config.target_layer_ids)
        self._fc = pack([reader.take("fc.weight", (hidden, taps * hidden))], space.device)
        self._hidden_norm = norm_weight(reader, "hidden_norm", hidden)
        self._layers = [layer_weights(config, reader, i) for i in range(config.num_hidden_layers)]
        self._context_kv = pack([layer.context_kv for layer in self._layers], space.device)
        self._norm = norm_weight(reader, "norm", hidden)
        self._choice = Choice(config, reader, target.max_rows)
        reader.finish()
        self._inv_freq = inverse_frequencies(config.rope_theta, width).to(space.device)
        self._axes = torch.zeros(len(self._inv_freq), dtype=torch.int32, device=space.device)
        self._name_buffers()
        space.reserve(target.max_rows)
        shape = (config.num_hidden_layers, num_pages, page_size, config.num_key_value_heads, width)
        self.keys = torch.empty(shape, dtype=space.dtype, device=space.device)
        self.values = torch.empty_like(self.keys)

    @property
    def tokens(self) -> Tensor:
        """int32 [most rows], the drafts of the last blocks, each block behind its known token."""
        return self._choice.tokens

    @property
    def alone(self) -> Tensor:
        """int32 [most rows], what the slots alone would have drafted; the same without a selector."""
        return self._choice.alone

    @property
    def page_bytes(self) -> int:
        """Memory of one page of keys and values, all layers."""
        return self.keys[:, 0].nbytes + self.values[:, 0].nbytes

    @property
    def scratch_bytes(self) -> int:
        """Memory of all scratch buffers."""
        return self._space.num_bytes

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page in all layers."""
        for cache in (self.keys, self.values):
            cache[:, target] = cache[:, source]

    def _name_buffers(self) -> None:
        config, space = self.config, self._space
        hidden, width, heads = config.hidden_size, config.head_dim, config.num_attention_heads
        queries, kv = heads * width, config.num_key_value_heads * width
        self._fused, self._context = space.slot("fused", hidden), space.slot("context", hidden)
        self._context_rows = space.slot("context.kv", len(self._layers) * 2 * kv)
        self._cos, self._sin = (space.slot(n, width // 2, torch.float32) for n in ("cos", "sin"))
        self._stream, self._delta = space.slot("stream", hidden), space.slot("delta", hidden)
        self._normed, self._convolved = space.slot("normed", hidden), space.slot("convolved", hidden)
        self._qkv, self._query = space.slot("qkv", queries + 2 * kv), space.slot("query", queries)
        self._attended = space.slot("attended", queries)
        self._gate_up = space.slot("gate_up", 2 * config.intermediate_size)
        self._inner = space.slot("inner", config.intermediate_size)
        self._logits = space.slot("logits", config.vocab_size, torch.float32)
        taps = config.conv_kernel_size
        if taps is not None and config.conv_group_size is not None:
            self._added = space.slot("added", 2 * taps * (hidden // config.conv_group_size))

    def project(self, places: Tensor, slot_mapping: Tensor) -> None:
        """Keys and values of the rows of the target's last step, in all layers.

        Args:
            places: int32 [1, R], place of each row in its sequence.
            slot_mapping: int32 [R], where its key and value go; -1: nowhere.
        """
        rows, eps = len(slot_mapping), self.config.rms_norm_eps
        scratch = self._space.view(rows)
        fused, context, found = map(scratch.rows, (self._fused, self._context, self._context_rows))
        linear(Operand(plain=self._target.feature_rows[:rows]), self._fc, fused)
        rms_norm(fused, self._hidden_norm, eps, Operand(plain=context), "unit")
        linear(Operand(plain=context), self._context_kv, found)
        self._turn(places, scratch)
        heads = found.unflatten(1, (len(self._layers), 2, self.config.num_key_value_heads, -1))
        nobody = scratch.rows(self._query)[:, :0].unflatten(1, (0, self.config.head_dim))
        for number, layer in enumerate(self._layers):
            self._write(
                number,
                layer,
                (nobody, heads[:, number, 0], heads[:, number, 1]),
                scratch,
                slot_mapping,
                nobody,
            )

    def draft(self, blocks: DraftBlocks) -> None:
        """Guesses into `tokens` and `alone`.

        Args:
            blocks: Their requests' tokens but the last are projected.
        """
        rows = len(blocks.tokens)
        scratch = self._space.view(rows)
        stream, delta = scratch.rows(self._stream), scratch.rows(self._delta)
        self._target.embed(blocks.tokens, stream)
        self._turn(blocks.places, scratch)
        before: Tensor | None = None
        for number, layer in enumerate(self._layers):
            self._attend(number, layer, blocks, scratch, before)
            self._transform(layer, blocks.size, scratch, delta)
            before = delta
        head, normed = self._target.head_input(rows), scratch.rows(self._normed)
        # The selector reads plain rows, whatever the head reads.
        operand = Operand(
            plain=normed if head.plain is None else head.plain,
            fp8=head.fp8,
            fp8_scale=head.fp8_scale,
            nvfp4=head.nvfp4,
            nvfp4_scale=head.nvfp4_scale,
            encode_scale=head.encode_scale,
        )
        rms_norm(stream, self._norm, self.config.rms_norm_eps, operand, "unit", before)
        logits = scratch.rows(self._logits)
        self._target.head(logits)
        assert operand.plain is not None, "written above"
        self._choice(blocks, operand.plain, logits)

    def _attend(
        self, number: int, layer: LayerWeights, blocks: DraftBlocks, scratch: Scratch, before: Tensor | None
    ) -> None:
        """The first half of a layer; its output is in the buffer of `_delta`."""
        config = self.config
        width, kv = config.head_dim, config.num_key_value_heads
        queries = config.num_attention_heads * width
        normed = self._enter(layer.input_norm, layer.attention_conv, blocks.size, scratch, before)
        qkv, query = scratch.rows(self._qkv), scratch.rows(self._query).unflatten(1, (-1, width))
        linear(Operand(plain=normed), layer.qkv, qkv)
        q, k, v = qkv.split([queries, kv * width, kv * width], 1)
        heads = tuple(x.unflatten(1, (-1, width)) for x in (q, k, v))
        self._write(number, layer, heads, scratch, blocks.slot_mapping, query)
        is_sliding = config.layer_types[number] == "sliding_attention"
        seen = blocks.sliding if is_sliding and blocks.sliding is not None else blocks.full
        attended = scratch.rows(self._attended)
        paged_attention(
            query,
            self.keys[number],
            self.values[number],
            seen.page_table,
            seen.q_start,
            seen.kv_len,
            float(width) ** -0.5,
            attended,
            causal=config.block_attention == "causal",
            first_key=seen.first_key,
        )
        self._leave(Operand(plain=attended), layer.out, layer.attention_conv, blocks.size, scratch)

    def _transform(self, layer: LayerWeights, size: int, scratch: Scratch, delta: Tensor) -> None:
        """The second half of a layer."""
        normed = self._enter(layer.post_norm, layer.mlp_conv, size, scratch, delta)
        gate_up, inner = scratch.rows(self._gate_up), Operand(plain=scratch.rows(self._inner))
        linear(Operand(plain=normed), layer.gate_up, gate_up)
        silu_mul(gate_up, inner)
        self._leave(inner, layer.down, layer.mlp_conv, size, scratch)

    def _enter(
        self, norm: Tensor, conv: Convolution | None, size: int, scratch: Scratch, delta: Tensor | None
    ) -> Tensor:
        """What a sublayer reads: the normed stream, convolved where the drafter does so."""
        normed = scratch.rows(self._normed)
        rms_norm(
            scratch.rows(self._stream), norm, self.config.rms_norm_eps, Operand(plain=normed), "unit", delta
        )
        if conv is None:
            return normed
        added, convolved = scratch.rows(self._added), scratch.rows(self._convolved)
        linear(Operand(plain=normed), conv.added, added)
        local_convolution(normed, conv.base, self._kernels(added), size, BEFORE, convolved)
        return convolved

    def _leave(
        self, x: Operand, weight: PackedWeight, conv: Convolution | None, size: int, scratch: Scratch
    ) -> None:
        """The last product of a sublayer into the buffer of `_delta`."""
        delta = scratch.rows(self._delta)
        if conv is None:
            linear(x, weight, delta)
            return
        convolved = scratch.rows(self._convolved)
        linear(x, weight, convolved)
        kernels = self._kernels(scratch.rows(self._added))
        local_convolution(convolved, conv.base, kernels, size, AFTER, delta)

    def _kernels(self, added: Tensor) -> Tensor:
        kernels: Tensor = added.unflatten(1, (2, self.config.conv_kernel_size or 1, -1))
        return kernels

    def _turn(self, places: Tensor, scratch: Scratch) -> None:
        cos, sin = scratch.rows(self._cos), scratch.rows(self._sin)
        rope_table(places, self._inv_freq, self._axes, cos, sin, self._space.dtype)

    def _write(
        self,
        number: int,
        layer: LayerWeights,
        heads: tuple[Tensor, ...],
        scratch: Scratch,
        slot_mapping: Tensor,
        query: Tensor,
    ) -> None:
        """Norms and rotates heads q, k, v; keys and values go to the pages, queries to `query`."""
        q, k, v = heads
        attention_inputs(
            q,
            k,
            v,
            layer.q_norm,
            layer.k_norm,
            self.config.rms_norm_eps,
            scratch.rows(self._cos),
            scratch.rows(self._sin),
            slot_mapping,
            query,
            self.keys[number],
            self.values[number],
        )
