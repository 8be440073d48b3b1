"""Host time of a step's metadata: three objects for any number of layers, against one for each group.

A server that shares one pool of pages between layers of different kinds makes all groups equally long, so
that kinds with 24, 8, 5 and 1 layers become 38 groups of one layer, each with a page table, places of rows
and metadata of its own, built and copied in every step. This module builds such metadata from the same plan
that `StepBuilder` takes. Knows counts and copies; computes no layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ocrquant.bench.timing import Estimate, interleave, median_interval, ratio
from ocrquant.engine.config import EngineConfig
from ocrquant.engine.metadata import StepBuilder
from ocrquant.engine.plan import Plan, Tables
from ocrquant.engine.pools import Holding, Pools
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.request import Request
from ocrquant.engine.sampling import SamplingParams
from ocrquant.models.step import AttentionMetadata

__all__ = [
    "FOUR_LAYOUTS",
    "GroupedBuilder",
    "GroupedState",
    "HostTimes",
    "group_size",
    "host_times",
    "num_groups",
]

FOUR_LAYOUTS = (24, 8, 5, 1)
"""Layers by kind: Gated DeltaNet, full attention, and a drafter's sliding and full attention."""
STEPS_PER_REPEAT = 50
POSITIONS = 4096


def group_size(layers: Sequence[int]) -> int:
    """Layers in a group by the published rule: as many as the smallest kind has, or the largest if close."""
    return max(layers) if max(layers) < 1.5 * min(layers) else min(layers)


def num_groups(layers: Sequence[int], size: int) -> int:
    """Groups of at most so many layers of one kind."""
    return sum(-(-count // size) for count in layers)


@dataclass(frozen=True, slots=True)
class GroupedState:
    """Metadata of one group of recurrent layers."""

    q_start: Tensor
    slots: Tensor
    fresh: Tensor


class GroupedBuilder:
    """Builds the metadata of steps without prompts, group by group.

    What groups share is built once, as servers do: first rows, lengths. Page tables, places and states are
    the group's own, and each is copied by itself.

    Args:
        config: The engine's.
        layers: Layers by kind; the first kind is recurrent.
        size: Layers in a group; None for the published rule.

    Attributes:
        num_groups: How many there are.
        num_copies: Copies to the device so far.
        num_objects: Objects of metadata so far.
    """

    def __init__(self, config: EngineConfig, layers: Sequence[int], size: int | None = None) -> None:
        size = size or group_size(layers)
        self.num_recurrent = num_groups(layers[:1], size)
        self.num_groups = num_groups(layers, size)
        self.num_copies = 0
        self.num_objects = 0
        self._page_size = config.page_size
        requests, pages = config.max_requests, config.pages_per_request
        self._shared = [torch.zeros(requests + 1, dtype=torch.int32) for _ in range(4)]
        self._own = [
            (
                torch.zeros(requests, dtype=torch.int32),
                torch.zeros((requests, pages), dtype=torch.int32),
                torch.zeros(requests, dtype=torch.int32),
            )
            for _ in range(self.num_groups)
        ]

    def build(self, plan: Plan) -> list[AttentionMetadata | GroupedState]:
        """The metadata of all groups for a step of single rows."""
        count = len(plan.decode)
        slots = np.array([request.slot for request in plan.decode], np.int32)
        places = np.array([request.num_computed for request in plan.decode], np.int32)
        tokens = np.array([request.output_ids[-1] for request in plan.decode], np.int32)
        self._send(tokens, self._shared[0][:count])
        self._send(places, self._shared[1][:count])
        q_start = self._send(np.arange(count + 1, dtype=np.int32), self._shared[2][: count + 1])
        kv_len = self._send(places + 1, self._shared[3][:count])
        made: list[AttentionMetadata | GroupedState] = []
        for number, (rows, table, fresh) in enumerate(self._own):
            if number < self.num_recurrent:
                own_slots = self._send(slots, rows[:count])
                is_fresh = self._send((places == 0).astype(np.int32), fresh[:count])
                made.append(GroupedState(q_start, own_slots, is_fresh))
                continue
            pages = self._send(plan.tables.kv.pages[slots], table[:count])
            page, offset = np.divmod(places, self._page_size)
            mapping = plan.tables.kv.pages[slots, page] * self._page_size + offset
            made.append(AttentionMetadata(self._send(mapping, rows[:count]), pages, q_start, kv_len))
        self.num_objects += len(made)
        return made

    def _send(self, host: npt.NDArray[np.int32], device: Tensor) -> Tensor:
        device.copy_(torch.from_numpy(host), non_blocking=True)
        self.num_copies += 1
        return device


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Microseconds of one step's metadata.

    Attributes:
        num_requests: Rows of the step.
        ours_us: Three objects, one copy.
        grouped_us: An object for each group.
        times: How many times longer the second takes.
    """

    num_requests: int
    ours_us: Estimate
    grouped_us: Estimate
    times: Estimate


def host_times(num_requests: int, layers: Sequence[int] = FOUR_LAYOUTS, *, repeats: int = 12) -> HostTimes:
    """Measures both ways on steps of single rows, arms interleaved.

    Args:
        num_requests: Requests in the step.
        layers: Layers by kind.
        repeats: Of each arm; each of 50 steps, in which every request goes on by a token.
    """
    room = num_requests * POSITIONS // 16
    config = EngineConfig(
        max_positions=POSITIONS,
        page_size=16,
        num_pages=room,
        drafter_pages=room,
        max_requests=num_requests,
        max_step_tokens=max(512, num_requests),
    )
    pools = Pools(config)
    holdings = [pools.take(POSITIONS) for _ in range(num_requests)]
    tables = Tables(pools.kv.table, pools.drafter.table if pools.drafter else None)
    arms = {
        "ours": _arm(StepBuilder(config, torch.device("cpu")), holdings, tables),
        "grouped": _arm(GroupedBuilder(config, layers), holdings, tables),
    }
    seconds = interleave(arms, repeats=repeats)
    scale = 1e6 / STEPS_PER_REPEAT
    return HostTimes(
        num_requests,
        median_interval(seconds["ours"]).scaled(scale),
        median_interval(seconds["grouped"]).scaled(scale),
        ratio(seconds["grouped"], seconds["ours"]),
    )


def _arm(
    builder: StepBuilder | GroupedBuilder, holdings: Sequence[Holding | None], tables: Tables
) -> Callable[[], None]:
    """Steps of requests that all go on by one token, from places spread over a page."""
    requests = tuple(
        Request(str(n), n, text_prompt([1] * (16 + n), 3), SamplingParams(), POSITIONS, holding=holding)
        for n, holding in enumerate(holdings)
    )
    for request in requests:
        request.extend((1,), (0.0,))
        request.num_computed = len(request.prompt)

    def run() -> None:
        for _ in range(STEPS_PER_REPEAT):
            builder.build(Plan((), requests, (), tables))
            for request in requests:
                request.extend((1,), (0.0,))
                request.num_computed += 1

    return run
