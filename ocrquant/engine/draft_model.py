"""Guesses by a trained drafter: indices on the host, then one upload, one replay and one read-back a step.

Where the device has batch classes (`engine.graphs`), blocks are drafted as the next larger class, those at
the end for nobody, so that what is captured does not depend on how many requests happen to run. Keys and
values of the context reach the drafter's pages in the target's own steps (`Drafter.project`), so parts of
prompts, kept prefixes and preempted requests need no care here. Knows requests, pages and blocks; knows no
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.device import Device
from ocrquant.engine.graphs import BatchClasses
from ocrquant.engine.moving_rows import CacheRows, MovingRows
from ocrquant.engine.page_table import PageTable
from ocrquant.engine.plan import Tables
from ocrquant.engine.request import Request
from ocrquant.models.drafter.blocks import DraftBlocks, Seen
from ocrquant.models.drafter.model import Drafter

__all__ = ["ModelDrafts"]

_CACHE_LINE = 16
"""In int32."""
_NOBODY = -1
_OF_NOBODY = {
    "places": 0,
    "slot_mapping": _NOBODY,
    "kv_len": 0,
    "page_table": 0,
    "first_key": 0,
    "row_kv_len": 0,
    "row_page_table": 0,
}
"""Arrays of blocks, or of their rows, that belong to no request; their known token may be anybody's."""


class ModelDrafts:
    """A `DraftSource` that runs a drafter.

    Args:
        drafter: Beside the engine's own model.
        config: The engine's; its windows are no longer than the drafter's blocks.
        device: Where both are.

    Attributes:
        alone: See `DraftSource`.
    """

    def __init__(self, drafter: Drafter, config: EngineConfig, device: Device) -> None:
        self._drafter, self._config, self._device = drafter, config, device
        sizes = device.batch_sizes if device.can_capture else ()
        self._classes = BatchClasses(config.max_requests, config.max_window, sizes)
        self._arenas: dict[tuple[int, int], _BlockArena] = {}
        chosen = [drafter.tokens] if drafter.alone is drafter.tokens else [drafter.tokens, drafter.alone]
        self._read_back = device.read_back(*chosen)
        self.alone: Sequence[tuple[int, ...]] = ()

    def capture_all(self) -> None:
        """Captures blocks of the longest size for every batch class, before the first request.

        The largest class comes first, as in `ModelRunner.capture_all`. Shorter blocks are captured when they
        first come. Does nothing where the device has no classes.
        """
        if self._config.max_window > 1:
            for count in reversed(self._classes.sizes):
                self._arena(count, self._config.max_window)

    def propose(self, requests: Sequence[Request], most: int, tables: Tables) -> list[tuple[int, ...]]:
        """See `DraftSource`; as many guesses as are wanted for every request."""
        arena = self._arena(self._classes.size_of(len(requests)), 1 + most)
        assert tables.drafter is not None, "an engine with a drafter has pages for it"
        arena.write(requests, tables.drafter)
        arena.launch()
        found = [_guesses(tokens, 1 + most) for tokens in self._read_back(len(requests) * (1 + most))]
        self.alone = found[1] if len(found) > 1 else ()
        return found[0]

    def _arena(self, count: int, size: int) -> _BlockArena:
        arena = self._arenas.get((count, size))
        if arena is None:
            arena = _BlockArena(count, size, self._drafter, self._config, self._device)
            self._arenas[count, size] = arena
        return arena


def _guesses(tokens: npt.NDArray[np.int32], size: int) -> list[tuple[int, ...]]:
    """What blocks of some size say behind their known tokens."""
    return [tuple(row) for row in tokens.reshape(-1, size)[:, 1:].tolist()]


class _BlockArena:
    """Blocks of one size for one number of requests: buffers on host and device, and the recorded pass.

    Args:
        count: Requests.
        size: Rows of a block.
        drafter: What runs.
        config: The engine's.
        device: Where it runs.
    """

    def __init__(self, count: int, size: int, drafter: Drafter, config: EngineConfig, device: Device) -> None:
        self._count, self._size, self._drafter, self._device = count, size, drafter, device
        made, rows, pages = drafter.config, count * size, config.pages_per_request
        self._is_sliding = made.sliding_window is not None
        # Windows that move with the row make every row a request of its own.
        self._by_row = self._is_sliding and made.window_lower == "query"
        shapes = {
            "tokens": (count, size),
            "places": (count, size),
            "slot_mapping": (count, size),
            "kv_len": (count,),
            "page_table": (count, pages),
        }
        if self._is_sliding:
            shapes["first_key"] = (rows,) if self._by_row else (count,)
        if self._by_row:
            shapes |= {"row_kv_len": (rows,), "row_page_table": (rows, pages)}
        self.host, device_arrays = self._allocate(shapes)
        self.host["tokens"][:] = made.mask_token_id
        # A capture on a GPU runs the pass; until there are requests all blocks are nobody's.
        device_arrays["slot_mapping"].fill_(_NOBODY)
        self._offsets = np.arange(size, dtype=np.int32)
        self._slots: list[int] = []
        self._rows: MovingRows
        self._blocks = self._make_blocks(device_arrays)
        self.launch: Callable[[], None] = device.capture(lambda: drafter.draft(self._blocks))

    def _allocate(
        self, shapes: dict[str, tuple[int, ...]]
    ) -> tuple[dict[str, npt.NDArray[np.int32]], dict[str, Tensor]]:
        ends, end = {}, 0
        for name, shape in shapes.items():
            ends[name] = (end, end + int(np.prod(shape)))
            end = -(-ends[name][1] // _CACHE_LINE) * _CACHE_LINE
        place = self._device.torch_device
        self._host = torch.zeros(end, dtype=torch.int32, pin_memory=place.type == "cuda")
        is_shared = self._device.reads_host_memory
        self._there = self._host if is_shared else torch.zeros_like(self._host, device=place)
        array = self._host.numpy()
        host = {name: array[a:b].reshape(shapes[name]) for name, (a, b) in ends.items()}
        there = {name: self._there[a:b].view(shapes[name]) for name, (a, b) in ends.items()}
        return host, there

    def _make_blocks(self, there: dict[str, Tensor]) -> DraftBlocks:
        place = self._device.torch_device
        starts = torch.arange(0, self._count * self._size + 1, self._size, dtype=torch.int32, device=place)
        full, sliding = Seen(there["page_table"], starts, there["kv_len"]), None
        if self._by_row:
            every = torch.arange(self._count * self._size + 1, dtype=torch.int32, device=place)
            sliding = Seen(there["row_page_table"], every, there["row_kv_len"], there["first_key"])
        elif self._is_sliding:
            sliding = Seen(there["page_table"], starts, there["kv_len"], there["first_key"])
        return DraftBlocks(
            self._size,
            there["tokens"].flatten(),
            there["places"].view(1, -1),
            there["slot_mapping"].flatten(),
            full,
            sliding,
        )

    def write(self, requests: Sequence[Request], table: PageTable) -> None:
        """Where the blocks of some requests lie, and their last known tokens; others are nobody's."""
        slots = [request.slot for request in requests]
        if slots != self._slots:
            self._slots, self._rows = slots, self._begin(slots, table)
        places = [request.num_computed for request in requests]
        self._rows.move_to(places)
        self.host["tokens"][: len(slots), 0] = [request.output_ids[-1] for request in requests]
        if self._is_sliding:
            self._write_windows(np.array(places, np.int32))
        if self._there is not self._host:
            self._device.upload(self._host, self._there)

    def _begin(self, slots: list[int], table: PageTable) -> MovingRows:
        """Blocks of other slots than before, all at the beginning of their sequences."""
        host, size, count = self.host, self._size, len(slots)
        rows = slice(0, count * size)
        host["places"][:count] = self._offsets
        host["kv_len"][:count] = size
        by_row = [host["places"].reshape(-1)[rows]]
        if self._by_row:
            is_causal = self._drafter.config.block_attention == "causal"
            host["row_kv_len"].reshape(-1, size)[:count] = self._offsets + 1 if is_causal else size
            by_row.append(host["row_kv_len"][rows])
        for name, value in _OF_NOBODY.items():
            if name in host:
                array = host[name]
                array[len(array) // self._count * count :] = value
        cache = CacheRows(table, host["slot_mapping"].reshape(-1)[rows], host["page_table"][:count])
        return MovingRows(slots, [0] * count, [size] * count, host["kv_len"][:count], by_row, [cache])

    def _write_windows(self, places: npt.NDArray[np.int32]) -> None:
        """The first keys that sliding layers see; the block itself is always seen."""
        host, window, count = self.host, self._drafter.config.sliding_window, len(places)
        assert window is not None, "sliding layers have a window"
        first, ends = places, places
        if self._by_row:
            first, ends = host["places"][:count].reshape(-1) + 1, places.repeat(self._size)
            tables = host["row_page_table"].reshape(self._count, self._size, -1)
            tables[:count] = host["page_table"][:count, None]
        np.clip(first - window, 0, ends, out=host["first_key"][: len(first)])
