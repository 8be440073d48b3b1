"""What passes between an engine and a model in one step: rows to compute, where their past lies, and logits.

Every tensor here lies in buffers of the engine that outlive the step; a model reads and writes them and keeps
none. Three objects of metadata serve a step however many layers there are. Does not know how a step was put
together.

Letters: R rows of all requests one after another, N requests, P pages of the longest request, S state slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ocrquant.models.spec import ModelSpec

__all__ = [
    "AttentionMetadata",
    "Caches",
    "Classes",
    "DeltaInputs",
    "Model",
    "Rows",
    "StateLayers",
    "StateMetadata",
    "Step",
]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one class: a slice, so that no kernel gathers.

    Attributes:
        rows: Among the R rows of the step.
        requests: Among its N requests.
    """

    rows: slice
    requests: slice


@dataclass(frozen=True, slots=True)
class Classes:
    """The rows of a step by what is done with them, in the order in which they lie.

    Attributes:
        drafted: Windows of drafted tokens to verify, all of one length.
        decode: One row a request.
        prefill: Parts of prompts, of any length.
    """

    drafted: Rows
    decode: Rows
    prefill: Rows


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where keys and values of the step's requests lie.

    Attributes:
        slot_mapping: int32 [R], ``page * page_size + offset`` where a row's key and value go; -1: nowhere.
        page_table: int32 [N, P], the pages of each request in order of position.
        q_start: int32 [N + 1], first row of each request; the last entry is R.
        kv_len: int32 [N], keys of each request, those of this step included.
    """

    slot_mapping: Tensor
    page_table: Tensor
    q_start: Tensor
    kv_len: Tensor


@dataclass(frozen=True, slots=True)
class StateMetadata:
    """Where the recurrent states of the step's requests lie.

    Attributes:
        q_start: int32 [N + 1], first row of each request; the last entry is R.
        slots: int32 [N], state slot of each request.
        fresh: int32 [N], not 0 where the request has no past: whatever its slot holds counts as zeros.
        classes: Which rows are verified, decoded and prefilled.
    """

    q_start: Tensor
    slots: Tensor
    fresh: Tensor
    classes: Classes


@dataclass(frozen=True, slots=True)
class Step:
    """One step's input on the device.

    Attributes:
        tokens: int32 [R].
        positions: int32 [axes, R], time, height and width of each row.
        image_index: int32 [R], row of the encoded images that replaces a token's embedding, -1 for the
            embedding; None where the step has no image token.
        logit_rows: int32 [M], the rows whose logits are wanted, in the order in which they are written.
        attention: For layers with keys and values.
        state: For layers with a recurrent state.
        classes: Which rows are verified, decoded and prefilled.
    """

    tokens: Tensor
    positions: Tensor
    image_index: Tensor | None
    logit_rows: Tensor
    attention: AttentionMetadata
    state: StateMetadata
    classes: Classes


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """What one Gated DeltaNet layer computed for the rows of a step before its recurrence.

    Attributes:
        mixed: [R, C], q | k | v before the convolution; rows may be strided.
        a: [R, value_heads], before softplus; rows may be strided.
        b: [R, value_heads], before the sigmoid; rows may be strided.
        conv_weight: [C, taps].
        a_log: float32 [value_heads].
        dt_bias: float32 [value_heads].
        key_heads: Heads of q and k.
        value_heads: Heads of v.
        key_dim: Width of a key head.
        value_dim: Width of a value head.
    """

    mixed: Tensor
    a: Tensor
    b: Tensor
    conv_weight: Tensor
    a_log: Tensor
    dt_bias: Tensor
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


class StateLayers(Protocol):
    """The recurrent states of all Gated DeltaNet layers, however they are kept."""

    def advance(self, layer: int, inputs: DeltaInputs, meta: StateMetadata, out: Tensor) -> None:
        """Convolution and recurrence of one layer over all rows of the step; states move on in place.

        Args:
            layer: Number of the layer among the Gated DeltaNet layers.
            inputs: Its rows and constants.
            meta: Where the requests' states are.
            out: [R, value_heads * value_dim], written.
        """
        ...


@dataclass(frozen=True, slots=True)
class Caches:
    """The past of all requests.

    Attributes:
        k: For each layer with keys and values [pages, page_size, kv_heads, head_dim], in the dtype of
            activations, or uint8 with E4M3 codes.
        v: The same for values.
        k_scales: For each of these layers what a stored key is multiplied by; 1 for caches without codes.
        v_scales: The same for values.
        state: The recurrent states; None for a model without them.
    """

    k: Sequence[Tensor]
    v: Sequence[Tensor]
    k_scales: Sequence[float]
    v_scales: Sequence[float]
    state: StateLayers | None


class Model(Protocol):
    """A model as an engine sees it."""

    @property
    def spec(self) -> ModelSpec:
        """Its sizes."""
        ...

    @property
    def max_rows(self) -> int:
        """Most rows of a step."""
        ...

    @property
    def kv_scales(self) -> Sequence[tuple[float, float]] | None:
        """Calibrated decode scales (key, value) of each layer with keys; None: the cache is not quantized."""
        ...

    def reserve(self, max_rows: int) -> None:
        """Makes the scratch buffers, once; ``forward`` allocates nothing afterwards.

        Args:
            max_rows: Most rows of a step.
        """
        ...

    def encode_images(self, pixels: Tensor, grids: Sequence[tuple[int, int, int]]) -> Tensor:
        """Embeddings of images, all packed.

        Args:
            pixels: Patches of all images one after another, as the image processor cuts them.
            grids: For each image frames, rows and columns of patches.

        Returns:
            [tokens of all images, hidden].
        """
        ...

    def forward(self, step: Step, caches: Caches, images: Tensor | None, logits: Tensor) -> None:
        """Computes one step.

        Args:
            step: Its rows.
            caches: The past of its requests; moves on in place.
            images: [M, hidden], what ``image_index`` points into; None where it is None.
            logits: float32 [rows of ``logit_rows``, vocab], written.
        """
        ...
