"""Where each array of a step lies in the one buffer that carries a step to the device.

Fixed offsets for the largest step, so that addresses never change: a program captured on the device's copy
stays valid. A CPU needs no copy and reads what the host writes. Knows names, shapes and offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ocrquant.engine.config import EngineConfig

__all__ = ["Arena", "Upload", "copy_to_device"]

Upload = Callable[[Tensor, Tensor], None]
"""Copies a host tensor (first argument) into a device tensor of the same shape and type."""
ALIGNMENT = 16
"""In elements of 4 bytes: every array begins on its own cache line."""
FLOATS = frozenset({"temperature", "top_p"})


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape)


def copy_to_device(host: Tensor, device: Tensor) -> None:
    """The copy of an arena; asynchronous from pinned memory to a GPU."""
    device.copy_(host, non_blocking=True)


def _places(config: EngineConfig) -> dict[str, _Place]:
    """Arrays of a step in the order in which they lie; page tables last, being long and seldom full."""
    rows, requests = config.max_step_tokens, config.max_requests
    sampled = requests * config.max_window
    # Of the drafter: where its keys and values go, and the place in the sequence that they are turned by.
    own = 2 if config.drafter_pages else 0
    shapes: dict[str, tuple[int, ...]] = {
        "q_start": (requests + 1,),
        "slots": (requests,),
        "fresh": (requests,),
        "logit_rows": (sampled,),
        "temperature": (sampled,),
        "top_p": (sampled,),
        "seed": (sampled, 2),
        # What grows by one from one step of single rows to the next lies together.
        "request_counters": (2, sampled),
        "row_counters": (config.position_axes + 1 + own, rows),
        "tokens": (rows,),
        "image_index": (rows,),
        "page_table": (requests, config.pages_per_request),
    }
    if config.drafter_pages:
        shapes["drafter_page_table"] = (requests, config.pages_per_request)
    places, offset = {}, 0
    for name, shape in shapes.items():
        places[name] = _Place(offset, shape)
        offset = -(-places[name].end // ALIGNMENT) * ALIGNMENT
    return places


T = TypeVar("T", npt.NDArray[np.int32], Tensor)


def _name_counters(arrays: dict[str, T], config: EngineConfig) -> None:
    """The rows of the arrays of counters by their own names."""
    axes = config.position_axes
    arrays["kv_len"], arrays["sample_position"] = arrays["request_counters"]
    arrays["kv_len"] = arrays["kv_len"][: config.max_requests]
    arrays["positions"] = arrays["row_counters"][:axes]
    arrays["slot_mapping"] = arrays["row_counters"][axes]
    if config.drafter_pages:
        arrays["drafter_slot_mapping"] = arrays["row_counters"][axes + 1]
        arrays["places"] = arrays["row_counters"][axes + 2 : axes + 3]


class Arena:
    """The buffer on the host, as NumPy arrays, and its copy on the device, as tensors.

    Args:
        config: The engine's.
        device: Where the tensors are.
        upload: How they get there; None where they are the host's own memory.

    Attributes:
        host: Arrays by name, of the largest step; int32 but for temperature and top_p.
        device: Tensors by name on the device, of the largest step.
        num_copies: Copies to the device so far.
    """

    def __init__(self, config: EngineConfig, device: torch.device, upload: Upload | None) -> None:
        self._places = _places(config)
        size = max(place.end for place in self._places.values())
        # Pinned, a copy to a GPU needs no staging and does not wait.
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = self._host if upload is None else torch.zeros_like(self._host, device=device)
        self._upload = upload
        self.num_copies = 0
        array = self._host.numpy()
        self.host: dict[str, npt.NDArray[np.int32]] = {}
        self.device: dict[str, Tensor] = {}
        for name, place in self._places.items():
            part, tensor = array[place.offset : place.end], self._device[place.offset : place.end]
            if name in FLOATS:
                part, tensor = part.view(np.float32), tensor.view(torch.float32)
            self.host[name] = part.reshape(place.shape)
            self.device[name] = tensor.view(place.shape)
        _name_counters(self.host, config)
        _name_counters(self.device, config)
        self._prefixes: dict[int, tuple[Tensor, Tensor]] = {}

    def send(self, last: str, num_rows: int) -> None:
        """Copies everything up to the first rows of one array to a device of its own memory, in one piece.

        Args:
            last: Name of the array that ends the piece.
            num_rows: Its rows that are needed.
        """
        if self._upload is None:
            return
        place = self._places[last]
        end = place.offset + num_rows * math.prod(place.shape[1:])
        pair = self._prefixes.get(end)
        if pair is None:
            pair = self._prefixes[end] = self._host[:end], self._device[:end]
        self._upload(*pair)
        self.num_copies += 1
