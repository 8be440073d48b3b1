"""The decoder from any of its blocks on, through the modules of the model itself.

One pass over a batch notes what every block was called with; a changed block is then run again from its
input, and the blocks after it. What comes before a change is never computed twice, and what is computed is
bit for bit what a pass through the whole model would give. Knows where blocks, final norm and head are; knows
no format and no score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.adapters.model import DocumentModel, Encoded
from ocrquant.artifacts import PartialStage
from ocrquant.errors import ModelError

__all__ = ["HiddenStates", "Trace", "trace_batch"]


PART_ELEMENTS = 1 << 25
"""Logits in memory at a time: some six float32 buffers of this size are alive at once, 0.8 GB in all."""

KEPT_LOGITS_BYTES = 1 << 30
"""Logits of the unchanged model beyond this are computed again for each candidate."""


class HiddenStates:
    """Hidden states by number, on the device or, beyond a limit, on disk.

    Args:
        spill: Where to put what does not fit.
        max_bytes: Most bytes to keep on the device.
        name: Of the files, one for each set of states that is alive at a time, in this process and others.
    """

    def __init__(self, spill: PartialStage, max_bytes: int, name: str = "hidden") -> None:
        self._spill = spill
        self._room = max_bytes
        self._name = name
        self._resident: dict[int, Tensor] = {}
        self._device: torch.device | None = None

    def put(self, index: int, hidden: Tensor) -> None:
        """Keeps a state in place of what that number held.

        Raises:
            OutputError: The disk is full.
        """
        self.drop(index)
        if hidden.nbytes <= self._room:
            self._room -= hidden.nbytes
            self._resident[index] = hidden
        else:
            self._device = hidden.device
            self._spill.write(self._file_name(index), {"hidden": hidden})

    def get(self, index: int) -> Tensor:
        """What `put` was given, on its device."""
        if index in self._resident:
            return self._resident[index]
        stored = self._spill.read(self._file_name(index))
        assert stored is not None, f"hidden states {index} were put before"
        return stored["hidden"].to(self._device)

    def drop(self, index: int) -> None:
        """Frees the memory of a state, if it is there; a file stays until it is written again."""
        if index in self._resident:
            self._room += self._resident.pop(index).nbytes

    def _file_name(self, index: int) -> str:
        return f"{self._name}-{index}"


@dataclass(frozen=True, slots=True)
class _Call:
    """What a block was called with beside the hidden states, which come first."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(slots=True)
class Trace:
    """One batch of B pages, seen by the unchanged model.

    Attributes:
        document: The model.
        hidden: Input of block i at index i, output of the last block at index `num_blocks`, [B, T, hidden].
        rows: int64 [n], flat positions whose next token is judged.
        page_of_row: int64 [n], the page of each.
        num_tokens: Judged tokens of each page.
        parts: Slices of the n positions whose logits are in memory at a time.
        inputs: Blocks whose input is in `hidden`, the number of blocks standing for the last one's output.
    """

    document: DocumentModel
    hidden: HiddenStates
    rows: Tensor
    page_of_row: Tensor
    num_tokens: list[int]
    parts: list[slice]
    inputs: list[int]
    _head: nn.Module
    _calls: list[_Call] = field(default_factory=list)
    _kept: list[Tensor] = field(default_factory=list)

    @property
    def num_blocks(self) -> int:
        """Decoder blocks."""
        return self.document.map.num_blocks

    def block(self, index: int) -> nn.Module:
        """The module of a block."""
        return self.document.module(f"{self.document.map.block_prefix}.{index}")

    def run_block(self, index: int, hidden: Tensor) -> Tensor:
        """Output [B, T, hidden] of one block, called as the model called it."""
        call = self._calls[index]
        return _tensor_of(self.block(index)(hidden, *call.arguments, **call.keywords))

    def logits_from(self, index: int) -> Iterator[Tensor]:
        """Logits [part, vocabulary] of each part, computed anew from the input of block `index` on."""
        hidden = self.hidden.get(index)
        for block in range(index, self.num_blocks):
            with self.document.resident_block(block):
                hidden = self.run_block(block, hidden)
        yield from self.logits_after(hidden)

    def logits_after(self, hidden: Tensor) -> Iterator[Tensor]:
        """Logits [part, vocabulary] of each part from an output [B, T, hidden] of the last block."""
        rows = self.judged(hidden)
        for part in self.parts:
            yield self.logits_of(rows[part])

    def judged(self, hidden: Tensor) -> Tensor:
        """The judged positions [n, hidden] of an output [B, T, hidden] of the last block."""
        return hidden.flatten(0, 1).index_select(0, self.rows)

    def logits_of(self, rows: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of outputs [rows, hidden] of the last block, by the head as it is now."""
        logits: Tensor = _head(self.document)(_final_norm(self.document)(rows))
        return logits

    @torch.no_grad()
    def reference(self) -> Iterator[Tensor]:
        """Logits [part, vocabulary] of each part by the unchanged model, whatever its head is now."""
        if self._kept:
            yield from self._kept
            return
        rows = self.judged(self.hidden.get(self.num_blocks))
        for part in self.parts:
            yield self._head(_final_norm(self.document)(rows[part]))

    def keep_reference(self, max_bytes: int) -> None:
        """Computes the logits of the unchanged model once, unless they take more memory than that."""
        dtype = self.hidden.get(self.num_blocks).dtype
        if len(self.rows) * _vocabulary(self._head) * dtype.itemsize <= max_bytes:
            self._kept = list(self.reference())

    def sum_by_page(self, values: Tensor) -> list[float]:
        """Sums of values [n] of the judged positions over each page, in float64."""
        sums = torch.zeros(len(self.num_tokens), dtype=torch.float64, device=values.device)
        sums.index_add_(0, self.page_of_row, values.double())
        found: list[float] = sums.tolist()
        return found


class _EnoughError(Exception):
    """Ends the pass before the head computes logits that nobody judges."""


@torch.no_grad()
def trace_batch(
    document: DocumentModel,
    encoded: Encoded,
    hidden: HiddenStates,
    *,
    inputs: Sequence[int] | None = None,
    kept_bytes: int | None = None,
) -> Trace:
    """Runs a batch through the model and notes what its blocks see.

    Args:
        document: The model; smoothing, if any, applied.
        encoded: The batch, padded on the right.
        hidden: Where to keep what the blocks see.
        inputs: Blocks from which something will be run again, in order; all of them by default.
        kept_bytes: Logits of the unchanged model beyond this are computed again each time;
            `KEPT_LOGITS_BYTES` by default.

    Raises:
        ModelError: The model has something between its last block and its head beside the final norm.
        OutputError: The disk is full.
    """
    mask = encoded.answer_mask
    rows, head = mask.flatten().nonzero().squeeze(1), _head(document)
    size = max(1, PART_ELEMENTS // _vocabulary(head))
    num_blocks = document.map.num_blocks
    trace = Trace(
        document,
        hidden,
        rows,
        page_of_row=mask.nonzero()[:, 0],
        num_tokens=mask.sum(1).tolist(),
        parts=[slice(first, first + size) for first in range(0, len(rows), size)],
        inputs=[*(range(num_blocks) if inputs is None else inputs), num_blocks],
        _head=head,
    )
    with ExitStack() as hooks:
        for index in range(trace.num_blocks):
            handle = trace.block(index).register_forward_pre_hook(
                _noting(trace, index, is_kept=index in trace.inputs), with_kwargs=True
            )
            hooks.callback(handle.remove)
        last = trace.block(trace.num_blocks - 1)
        hooks.callback(
            last.register_forward_hook(lambda *call: hidden.put(trace.num_blocks, _tensor_of(call[2]))).remove
        )
        hooks.callback(head.register_forward_pre_hook(_stop_at_head(trace)).remove)
        with suppress(_EnoughError):
            document.logits(encoded)
    trace.keep_reference(KEPT_LOGITS_BYTES if kept_bytes is None else kept_bytes)
    return trace


def _noting(trace: Trace, index: int, *, is_kept: bool) -> Callable[..., None]:
    def note(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        others = dict(keywords)
        first, *rest = arguments or (others.pop("hidden_states"),)
        if is_kept:
            trace.hidden.put(index, first)
        trace._calls.append(_Call(tuple(rest), others))

    return note


def _stop_at_head(trace: Trace) -> Callable[..., None]:
    """Makes sure that replaying ends as the model does, then stops it."""

    def stop(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        rows = trace.judged(trace.hidden.get(trace.num_blocks))
        if not torch.equal(_final_norm(trace.document)(rows), trace.judged(arguments[0])):
            raise ModelError(
                trace.document.map.architecture,
                expected="nothing but a norm between the last decoder block and the head",
                given="something else",
                fix="report the model",
            )
        raise _EnoughError

    return stop


def _tensor_of(output: Any) -> Tensor:
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


def _head(document: DocumentModel) -> nn.Module:
    head = document.model.get_output_embeddings()
    assert isinstance(head, nn.Module), "a model that generates text has a head"
    return head


def _vocabulary(head: nn.Module) -> int:
    weight = head.weight
    assert isinstance(weight, Tensor), "a head is a linear"
    return weight.shape[0]


def _final_norm(document: DocumentModel) -> nn.Module:
    decoder = document.map.block_prefix.rpartition(".")[0]
    return document.module(f"{decoder}.norm")
