"""The decoder that all families share: embedding, layers, final norm and head over the rows of one step.

A step touches buffers that ``reserve`` made and the caches that it is given, calls ops and nothing else; what
a tensor holds is never read here. So the ops of a step can be recorded once and replayed. Knows that a layer
is norm, mixer, norm, MLP. Does not know which family it is, or what mixes the rows of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ocrquant.errors import ModelError
from ocrquant.kernels.add import add
from ocrquant.kernels.embed import embed
from ocrquant.kernels.linear import PackedWeight
from ocrquant.kernels.operand import Operand
from ocrquant.models.build import Build
from ocrquant.models.layers.head import Head
from ocrquant.models.layers.linear import LinearRecord
from ocrquant.models.layers.mlp import Mlp
from ocrquant.models.layers.norm import RmsNorm
from ocrquant.models.layers.rotary import Rotary
from ocrquant.models.spec import ModelSpec
from ocrquant.models.step import Caches, Step
from ocrquant.models.workspace import OperandSlot, Scratch

__all__ = [
    "NORMED",
    "Decoder",
    "DecoderLayer",
    "Mixer",
    "Vision",
]

NORMED = "normed"
"""Operand that mixers and MLPs read: the residual stream behind a norm."""


class Mixer(Protocol):
    """What mixes the rows of a request: attention or a recurrence."""

    def __call__(self, scratch: Scratch, step: Step, caches: Caches, out: Tensor) -> None:
        """Reads the operand ``NORMED``, writes [R, hidden], moves its caches on."""
        ...


class Vision(Protocol):
    """A vision tower."""

    def encode(self, pixels: Tensor, grids: Sequence[tuple[int, int, int]]) -> Tensor:
        """See ``models.step.Model.encode_images``."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer: norm, mixer, norm, MLP, each half added to the residual stream.

    Attributes:
        input_norm: Before the mixer.
        mixer_input: What the mixer's products read.
        mixer: Attention or a recurrence.
        post_norm: Before the MLP.
        mlp_input: What the MLP's products read.
        mlp: The MLP.
    """

    input_norm: RmsNorm
    mixer_input: OperandSlot
    mixer: Mixer
    post_norm: RmsNorm
    mlp_input: OperandSlot
    mlp: Mlp


class Decoder:
    """A model as ``models.step.Model`` describes it; made by the modules of ``models.families``.

    Args:
        spec: Its sizes.
        build: What its parts were made from.
        table: [vocab, hidden], the embedding; packed where it is the head as well.
        rotary: Rotary positions of its attention layers.
        layers: Its layers.
        head: Final norm and output head.
        vision: Its vision tower; None for a model of text alone.
        kv_scales: Decode scales (key, value) of each attention layer's cache; None for caches without codes.

    Attributes:
        weight_bytes: Bytes of all weights in memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        build: Build,
        *,
        table: Tensor | PackedWeight,
        rotary: Rotary,
        layers: Sequence[DecoderLayer],
        head: Head,
        vision: Vision | None,
        kv_scales: Sequence[tuple[float, float]] | None,
    ) -> None:
        self.spec = spec
        self.kv_scales = kv_scales
        self._records = tuple(build.linears.records)
        self._ignored = dict(build.reader.ignored)
        self.weight_bytes = build.reader.num_bytes + build.linears.num_bytes
        self._workspace = build.workspace
        self._table = table
        self._rotary = rotary
        self._layers = tuple(layers)
        self._head = head
        self._vision = vision
        self._known_caches: Caches | None = None
        self._taps: dict[int, Tensor] = {}
        self._features = torch.empty(0, 0, dtype=build.workspace.dtype)
        self._stream = build.workspace.slot("stream", spec.hidden)
        self._delta = build.workspace.slot("delta", spec.hidden)

    @property
    def linears(self) -> Sequence[LinearRecord]:
        """What the checkpoint asks of each linear and what runs; see ``layers.linear.records_table``."""
        return self._records

    @property
    def ignored(self) -> Mapping[str, str]:
        """Tensors of the checkpoint that the model leaves, with the reason."""
        return self._ignored

    @property
    def max_rows(self) -> int:
        """Most rows of a step."""
        return self._workspace.max_rows

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all scratch buffers."""
        return self._workspace.num_bytes

    def reserve(self, max_rows: int) -> None:
        """Makes the scratch buffers, once, for steps of at most ``max_rows`` rows."""
        self._workspace.reserve(max_rows)

    def tap(self, layers: Sequence[int]) -> None:
        """Makes every later step keep the residual stream behind some layers, for a drafter to read.

        Args:
            layers: Numbers of layers, from 0, in rising order; layer i gives what Hugging Face calls
                ``hidden_states[i + 1]``, before the final norm.

        Raises:
            ModelError: There is no such layer, or they do not rise.
        """
        known = range(len(self._layers))
        if list(layers) != sorted(set(layers)) or any(layer not in known for layer in layers):
            raise ModelError(
                "layers to tap",
                expected=f"rising numbers from 0 to {len(known) - 1}",
                given=list(layers),
                fix="take a drafter that was made for this model",
            )
        shape = (self.max_rows, len(layers) * self.spec.hidden)
        self._features = torch.empty(shape, dtype=self._workspace.dtype, device=self._workspace.device)
        self._taps = dict(zip(layers, self._features.split(self.spec.hidden, dim=1), strict=True))

    @property
    def tapped(self) -> tuple[int, ...]:
        """The layers of the last `tap`; none before it."""
        return tuple(self._taps)

    @property
    def features(self) -> Tensor:
        """[taps, most rows, hidden]: what `tap` asked for, of the rows of the last step.

        The next step overwrites them.
        """
        taps: Tensor = self._features.unflatten(1, (-1, self.spec.hidden))
        return taps.transpose(0, 1)

    @property
    def feature_rows(self) -> Tensor:
        """[most rows, taps * hidden]: the same memory, all taps of a row side by side."""
        return self._features

    def embed(self, tokens: Tensor, out: Tensor) -> None:
        """Embeddings of tokens.

        Args:
            tokens: int32 [R].
            out: [R, hidden], written.
        """
        embed(self._table, tokens, out)

    def head_input(self, num_rows: int) -> Operand:
        """What the output product reads, to be written by a norm; shared with `forward`."""
        return self._head.operand(self._workspace.view(num_rows))

    def head(self, logits: Tensor) -> None:
        """The output product of as many rows of `head_input` as there are logits.

        Args:
            logits: float32 [R, vocab], written.
        """
        self._head.project(self._workspace.view(len(logits)), logits)

    def encode_images(self, pixels: Tensor, grids: Sequence[tuple[int, int, int]]) -> Tensor:
        """See ``models.step.Model``.

        Raises:
            ModelError: The model has no vision tower.
        """
        if self._vision is None:
            fix = "take a model with a vision_config"
            raise ModelError("image", expected="a vision tower", given="none", fix=fix)
        return self._vision.encode(pixels, grids)

    @torch.inference_mode()
    def forward(self, step: Step, caches: Caches, images: Tensor | None, logits: Tensor) -> None:
        """See ``models.step.Model``.

        Raises:
            ModelError: The caches are not those that the checkpoint asks for.
            ShapeError: The step has more rows than were reserved, or an op refuses an argument.
        """
        if caches is not self._known_caches:
            self._check(caches)
            self._known_caches = caches
        scratch = self._workspace.view(step.tokens.shape[0])
        stream, sublayer = scratch.rows(self._stream), scratch.rows(self._delta)
        embed(self._table, step.tokens, stream, images, step.image_index)
        self._rotary(step.positions, scratch)
        delta: Tensor | None = None
        for index, layer in enumerate(self._layers):
            layer.input_norm(stream, scratch.operand(layer.mixer_input), delta)
            layer.mixer(scratch, step, caches, sublayer)
            layer.post_norm(stream, scratch.operand(layer.mlp_input), sublayer)
            layer.mlp(scratch, sublayer)
            delta = sublayer
            if index in self._taps:
                add(stream, sublayer, self._taps[index][: len(stream)])
        num_wanted = step.logit_rows.shape[0]
        if num_wanted:  # none where a step only reads a part of a prompt
            self._head(self._workspace.view(num_wanted), stream, sublayer, step.logit_rows, logits)

    def _check(self, caches: Caches) -> None:
        """Refuses caches that would leave the checkpoint's own scales unused, or make scales up."""
        count, scales = self.spec.attention.num_layers, self.kv_scales
        wanted = (
            (torch.uint8, scales) if scales is not None else (self._workspace.dtype, [(1.0, 1.0)] * count)
        )
        kinds = [tensor.dtype for tensor in (*caches.k, *caches.v)]
        given = list(zip(caches.k_scales, caches.v_scales, strict=True))
        if kinds != [wanted[0]] * 2 * count or given != list(wanted[1]):
            raise ModelError(
                "caches of keys and values",
                expected=f"{count} layers of {wanted[0]} with decode scales {list(wanted[1])}",
                given=f"{len(caches.k)} of {', '.join(sorted({str(kind) for kind in kinds}))} with {given}",
                fix="make the caches as the model's kv_scales say",
            )
