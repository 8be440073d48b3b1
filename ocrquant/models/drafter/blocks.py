"""Blocks to draft, as tensors on the device: tokens, places, where keys and values lie. Knows no layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["DraftBlocks", "Seen"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the rows of some blocks see; see `kernels.paged_attention`.

    Attributes:
        page_table: int32 [N, P].
        q_start: int32 [N + 1].
        kv_len: int32 [N].
        first_key: int32 [N]; None: from the beginning.
    """

    page_table: Tensor
    q_start: Tensor
    kv_len: Tensor
    first_key: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DraftBlocks:
    """Blocks to draft, R rows in all.

    Attributes:
        size: Rows of a block: the last known token, then masks.
        tokens: int32 [R].
        places: int32 [1, R], place of each row in its sequence.
        slot_mapping: int32 [R], where a row's key and value go.
        full: What full layers see.
        sliding: What sliding layers see; None without such layers.
    """

    size: int
    tokens: Tensor
    places: Tensor
    slot_mapping: Tensor
    full: Seen
    sliding: Seen | None
