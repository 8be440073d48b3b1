"""The decoder block by block, each over all batches, with the hidden states between two blocks on disk.

A pass batch by batch would read all weights for each batch; this one reads each block once, whatever the
number of pages, and needs memory for one block and one batch. What a block computes is bit for bit what it
computes in an ordinary pass: the model itself prepares masks and positions, while its other blocks are
skipped. Knows blocks and batches; does not know what is observed in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.adapters.model import DocumentModel, Encoded
from ocrquant.artifacts import PartialStage
from ocrquant.calibrate.batching import encode_batch
from ocrquant.errors import ModelError
from ocrquant.pages import Page

__all__ = ["DecoderPasses"]

_EMBEDS = "inputs_embeds"
_POSITIONS = ("input_ids", "position_ids", "valid", "image_mask", "answer_mask")
"""Fields of a batch that are tensors."""


class _EnoughError(Exception):
    """Ends a pass once what is wanted was seen."""


class DecoderPasses:
    """All batches on their way through the decoder; the order is `embed`, then `run` block by block.

    A block may be run again over a batch as long as its input was not dropped.

    Args:
        document: The model, not quantized.
        batches: The pages of each batch, each page with a text.
        store: Where tensors are kept between two blocks; what it holds is taken over.
        name: Begins the names in the store, where several processes run all batches each.
    """

    def __init__(
        self,
        document: DocumentModel,
        batches: Sequence[Sequence[Page]],
        store: PartialStage,
        name: str = "",
    ) -> None:
        self._document = document
        self._batches = batches
        self._store = store
        self._name = name
        prefix, count = document.map.block_prefix, document.map.num_blocks
        self._blocks = [document.module(f"{prefix}.{index}") for index in range(count)]

    def embed(self, number: int) -> None:
        """Works out the input of the first block for a batch, unless it is there.

        Raises:
            PagesError: A page has no text.
            ImageError: An image cannot be read.
            PageSizeError: A page exceeds the context of the model.
            ModelError: The model does something between two blocks.
            OutputError: The disk is full.
        """
        if self._store.has(self._hidden(0, number)):
            return
        encoded = self._document.embed(encode_batch(self._document, self._batches[number]))
        seen: list[Tensor] = []

        def first(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
            seen.append(hidden)
            return hidden

        def following(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
            if hidden is not seen[0]:
                raise ModelError(
                    self._document.map.architecture,
                    expected="nothing between two decoder blocks",
                    given="something",
                    fix="report the model",
                )
            return hidden

        with _forwards(self._blocks, [first, *[following] * (len(self._blocks) - 1)]):
            self._pass(encoded, stop_at=_head(self._document))
        assert encoded.embedded is not None, "the model was just asked for it"
        others = {name: value for name, value in encoded.embedded.items() if name != _EMBEDS}
        kept = {name: getattr(encoded, name) for name in _POSITIONS} | dict(_leaves("embedded", others))
        self._store.write(self._batch(number), kept)
        self._store.write(self._hidden(0, number), {"hidden": seen[0]})

    def batch(self, number: int) -> Encoded:
        """The tensors of a batch that was embedded, without its pixels."""
        stored = self._store.read(self._batch(number))
        assert stored is not None, f"batch {number} was embedded before"
        fields = {name: stored.pop(name) for name in _POSITIONS}
        embedded = _tree(stored).get("embedded", {})
        return Encoded(**fields, vision={}, padding_side="right", embedded=embedded).to(self._document.device)

    def run(self, block: int, encoded: Encoded, number: int, *, keep: bool = True) -> None:
        """Runs one block over a batch, for the sake of hooks in it, and keeps its output for the next one.

        Args:
            block: Index of the block; the number of blocks stands for what follows them, up to the input of
                the head.
            encoded: What `batch` gives for the number.
            number: The batch.
            keep: Whether the output is wanted.

        Raises:
            OutputError: The disk is full.
        """
        stored = self._store.read(self._hidden(block, number))
        assert stored is not None, f"block {block - 1} ran over batch {number} before"
        hidden = stored["hidden"].to(self._document.device)
        found: list[Tensor] = []
        forwards: list[Callable[..., Any]] = [_identity] * len(self._blocks)
        if block < len(self._blocks):
            original = self._blocks[block].forward

            def compute(_: Tensor, *arguments: Any, **keywords: Any) -> Any:
                output = original(hidden, *arguments, **keywords)
                found.append(output[0] if isinstance(output, tuple) else output)
                raise _EnoughError

            forwards[block] = compute
        else:
            forwards[-1] = lambda *_, **__: hidden
        with _forwards(self._blocks, forwards):
            embedded = {**(encoded.embedded or {}), _EMBEDS: hidden}
            self._pass(replace(encoded, embedded=embedded), stop_at=_head(self._document))
        if found and keep:
            self._store.write(self._hidden(block + 1, number), {"hidden": found[0]})

    def drop(self, block: int, number: int) -> None:
        """Forgets the input of a block for a batch."""
        self._store.remove(self._hidden(block, number))

    def has_reached(self, block: int) -> bool:
        """Whether the input of a block is there for every batch."""
        return all(self._store.has(self._hidden(block, number)) for number in range(len(self._batches)))

    def _hidden(self, block: int, number: int) -> str:
        return f"{self._name}hidden-{block}-{number}"

    def _batch(self, number: int) -> str:
        return f"{self._name}batch-{number}"

    @torch.no_grad()
    def _pass(self, encoded: Encoded, stop_at: nn.Module) -> None:
        def stop(*_: Any) -> None:
            raise _EnoughError

        handle = stop_at.register_forward_pre_hook(stop)
        try:
            with suppress(_EnoughError):
                self._document.logits(encoded)
        finally:
            handle.remove()


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested mappings and sequences, by the way to them; other values are left out."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from _leaves(f"{name}.{key}", item)


def _tree(leaves: Mapping[str, Tensor]) -> Any:
    """What `_leaves` took apart, sequences as lists."""
    children: dict[str, dict[str, Tensor]] = {}
    for name, tensor in leaves.items():
        first, _, rest = name.partition(".")
        children.setdefault(first, {})[rest] = tensor
    found = {name: inner[""] if "" in inner else _tree(inner) for name, inner in children.items()}
    if found and all(name.isdecimal() for name in found):
        return [found[name] for name in sorted(found, key=int)]
    return found


def _identity(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden


def _head(document: DocumentModel) -> nn.Module:
    head = document.model.get_output_embeddings()
    assert isinstance(head, nn.Module), "a model that generates text has a head"
    return head


@contextmanager
def _forwards(modules: Sequence[nn.Module], functions: Sequence[Callable[..., Any]]) -> Iterator[None]:
    """Puts functions in the place of forward passes for the length of a ``with`` block."""
    with ExitStack() as undo:
        for module, function in zip(modules, functions, strict=True):
            before = vars(module).get("forward")
            module.forward = function
            undo.callback(_restore, module, before)
        yield


def _restore(module: nn.Module, before: Callable[..., Any] | None) -> None:
    if before is None:
        del module.forward
    else:
        module.forward = before
