"""From a plan to what a model reads: index arithmetic on the host, one copy, three objects of metadata.

Three objects serve a step however many layers there are: attention, recurrent states, drafter. Reads nothing
back from the device, and knows no layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ocrquant.engine.arena import Arena, Upload, copy_to_device
from ocrquant.engine.config import EngineConfig
from ocrquant.engine.graphs import padding_of, write_padding
from ocrquant.engine.moving_rows import CacheRows, MovingRows
from ocrquant.engine.plan import Chunk, Plan, PlanShape
from ocrquant.engine.request import Request
from ocrquant.engine.step_views import SamplingInputs, StepInputs, make_views

__all__ = ["SamplingInputs", "StepBuilder", "StepInputs"]

Int32 = npt.NDArray[np.int32]

MAX_KEPT_VIEWS = 512
"""Shapes whose views are kept. A batch at work has few: decode rows, with or without a part of a prompt."""


@dataclass(frozen=True, slots=True)
class _Ongoing:
    """A step that had only windows and single rows: most often the same requests come again.

    Attributes:
        requests: In the order of their rows.
        shape: What it was filled up to.
        inputs: The views of the step.
        tokens: int32 [R], written.
        rows: What counts their places.
    """

    requests: tuple[Request, ...]
    shape: PlanShape
    inputs: StepInputs
    tokens: Int32
    rows: MovingRows


class StepBuilder:
    """Writes plans into an arena.

    Args:
        config: The engine's.
        device: Where the model runs.
        upload: How the arena gets there; None where the host's memory is read.
    """

    def __init__(
        self, config: EngineConfig, device: torch.device, upload: Upload | None = copy_to_device
    ) -> None:
        self.config = config
        self.arena = Arena(config, device, upload)
        self._views: dict[PlanShape, StepInputs] = {}
        self._shape = PlanShape(0, 0, 0, 0, 0, 0, images=False)
        self._last: _Ongoing | None = None
        # What never changes while a request has its slot, by slot: gathered instead of asked for again.
        rows = config.state_rows
        self._rope_delta = np.zeros(rows, np.int32)
        self._temperature = np.zeros(rows, np.float32)
        self._top_p = np.zeros(rows, np.float32)
        self._seed = np.zeros((rows, 2), np.int32)

    def build(self, plan: Plan, shape: PlanShape | None = None) -> StepInputs:
        """Writes a plan, sends it, and gives the views that fit it.

        The plan may change afterwards: the arena has all of it. The views stay valid, with new content
        after the next call.

        Args:
            plan: The step.
            shape: The batch class that it is filled up to; None for its own shape.
        """
        self._shape = shape or plan.shape
        if not self._advance(plan):
            self._write(plan)
        self._send()
        return self._last.inputs if self._last else self._inputs(self._shape)

    def build_padding(self, shape: PlanShape) -> StepInputs:
        """The same for a step of a class in which every row belongs to nobody."""
        self._last, self._shape = None, shape
        write_padding(self.arena.host, padding_of(shape), shape)
        self._send()
        return self._inputs(shape)

    def _send(self) -> None:
        last = "drafter_page_table" if "drafter_page_table" in self.arena.host else "page_table"
        self.arena.send(last, self._shape.num_requests)

    def _write(self, plan: Plan) -> None:
        """Everything of a plan."""
        self._last = None
        for chunk in plan.prefill:
            self._admit(chunk)
        self._write_windows(plan)
        self._write_decode(plan)
        self._write_chunks(plan)
        self._write_pages(plan)
        self._write_sampling(plan)
        self.arena.host["q_start"][plan.shape.num_requests] = plan.shape.num_rows
        if self._shape != plan.shape:
            write_padding(self.arena.host, plan.shape, self._shape)
        if not plan.prefill:
            self._last = self._remember(plan)

    def _remember(self, plan: Plan) -> _Ongoing:
        """What the next step needs to know if the same requests go on."""
        shape, requests, host = plan.shape, plan.going_on, self.arena.host
        rows, count = slice(0, shape.num_rows), slice(0, shape.num_requests)
        caches = [CacheRows(plan.tables.kv, host["slot_mapping"][rows], host["page_table"][count])]
        if plan.tables.drafter is not None:
            own = host["drafter_slot_mapping"][rows], host["drafter_page_table"][count]
            caches.append(CacheRows(plan.tables.drafter, *own))
        moving = MovingRows(
            slots=[request.slot for request in requests],
            places=[request.num_computed for request in requests],
            row_counts=[shape.window] * shape.drafted + [1] * shape.decode,
            by_request=host["kv_len"][count],
            by_row=[host["row_counters"][:, rows], host["sample_position"][rows]],
            caches=caches,
        )
        return _Ongoing(requests, self._shape, self._inputs(self._shape), host["tokens"][rows], moving)

    def _advance(self, plan: Plan) -> bool:
        """Writes what differs if the same requests go on with as many rows each; false if they do not."""
        last = self._last
        if last is None or plan.prefill or self._shape != last.shape or plan.going_on != last.requests:
            return False
        last.rows.move_to([request.num_computed for request in last.requests])
        tokens: list[int] = []
        for window in plan.drafted:
            tokens.append(window.request.output_ids[-1])
            tokens += window.drafts
        tokens += [request.output_ids[-1] for request in plan.decode]
        last.tokens[:] = tokens
        return True

    def _admit(self, chunk: Chunk) -> None:
        request, slot = chunk.request, chunk.request.slot
        self._rope_delta[slot] = request.prompt.rope_delta
        self._temperature[slot] = request.sampling.temperature
        self._top_p[slot] = request.sampling.top_p
        self._seed[slot] = request.sampling.seed_words

    def _write_windows(self, plan: Plan) -> None:
        host, window = self.arena.host, plan.shape.window
        for number, drafted in enumerate(plan.drafted):
            request, begin = drafted.request, number * window
            start, rows = request.num_computed, slice(begin, begin + window)
            places = np.arange(start, start + window, dtype=np.int32)
            host["tokens"][rows] = (*request.tokens(start, start + 1), *drafted.drafts)
            host["positions"][:, rows] = places + request.prompt.rope_delta
            host["logit_rows"][rows] = np.arange(begin, begin + window)
            host["sample_position"][rows] = places + 1
            self._write_request(number, request.slot, begin, start + window, fresh=False)
            self._write_slots(plan, request.slot, places, begin)

    def _write_decode(self, plan: Plan) -> None:
        shape, host = plan.shape, self.arena.host
        if not plan.decode:
            return
        first, begin = shape.drafted, shape.drafted * shape.window
        requests, rows = slice(first, first + shape.decode), slice(begin, begin + shape.decode)
        known = np.array([(r.slot, r.num_computed, r.output_ids[-1]) for r in plan.decode], np.int32)
        slots, places = known[:, 0], known[:, 1]
        host["tokens"][rows] = known[:, 2]
        host["positions"][:, rows] = places + self._rope_delta[slots]
        host["slots"][requests] = slots
        host["fresh"][requests] = 0
        np.add(places, 1, out=host["kv_len"][requests])
        np.add(places, 1, out=host["sample_position"][rows])
        every_row = np.arange(begin, begin + shape.decode, dtype=np.int32)
        host["q_start"][requests] = every_row
        host["logit_rows"][rows] = every_row
        self._write_slots(plan, slots, places, begin)

    def _write_chunks(self, plan: Plan) -> None:
        shape, host = plan.shape, self.arena.host
        number, begin = shape.drafted + shape.decode, shape.drafted * shape.window + shape.decode
        sampled, image_row = begin, 0
        if shape.images:
            host["image_index"][: shape.num_rows] = -1
        for chunk in plan.prefill:
            request, rows = chunk.request, slice(begin, begin + chunk.num_rows)
            places = np.arange(chunk.start, chunk.end, dtype=np.int32)
            host["tokens"][rows] = request.tokens(chunk.start, chunk.end)
            self._write_positions(chunk, begin, places)
            for first, last in request.prompt.image_runs(chunk.start, chunk.end):
                run = slice(begin + first - chunk.start, begin + last - chunk.start)
                host["image_index"][run] = np.arange(image_row, image_row + last - first)
                image_row += last - first
            self._write_request(number, request.slot, begin, chunk.end, fresh=chunk.start == 0)
            self._write_slots(plan, request.slot, places, begin)
            number, begin = number + 1, begin + chunk.num_rows
            if chunk.samples:
                host["logit_rows"][sampled] = begin - 1
                host["sample_position"][sampled] = chunk.end
                sampled += 1

    def _write_positions(self, chunk: Chunk, begin: int, places: Int32) -> None:
        prompt, positions = chunk.request.prompt, self.arena.host["positions"]
        asked = max(0, min(chunk.end, len(prompt)) - chunk.start)
        positions[:, begin : begin + asked] = prompt.positions[:, chunk.start : chunk.start + asked]
        positions[:, begin + asked : begin + chunk.num_rows] = places[asked:] + prompt.rope_delta

    def _write_request(self, number: int, slot: int, begin: int, kv_len: int, *, fresh: bool) -> None:
        host = self.arena.host
        host["q_start"][number] = begin
        host["kv_len"][number] = kv_len
        host["slots"][number] = slot
        host["fresh"][number] = fresh

    def _write_slots(self, plan: Plan, slots: Int32 | int, places: Int32, begin: int) -> None:
        """Where the rows' keys and values go, in both paged caches."""
        host, rows = self.arena.host, slice(begin, begin + len(places))
        host["slot_mapping"][rows] = plan.tables.kv.cells[slots, places]
        if plan.tables.drafter is not None:
            host["drafter_slot_mapping"][rows] = plan.tables.drafter.cells[slots, places]
            host["places"][0, rows] = places

    def _write_pages(self, plan: Plan) -> None:
        host, count = self.arena.host, plan.shape.num_requests
        slots = host["slots"][:count]
        np.take(plan.tables.kv.pages, slots, axis=0, out=host["page_table"][:count], mode="clip")
        if plan.tables.drafter is not None:
            own = plan.tables.drafter.pages
            np.take(own, slots, axis=0, out=host["drafter_page_table"][:count], mode="clip")

    def _write_sampling(self, plan: Plan) -> None:
        shape, host = plan.shape, self.arena.host
        windows = shape.drafted * shape.window
        slots = host["slots"][: shape.drafted + shape.logit_rows - windows]
        if shape.drafted:
            slots = np.concatenate([np.repeat(slots[: shape.drafted], shape.window), slots[shape.drafted :]])
        rows = slice(0, shape.logit_rows)
        host["temperature"][rows] = self._temperature[slots]
        host["top_p"][rows] = self._top_p[slots]
        host["seed"][rows] = self._seed[slots]

    def _inputs(self, shape: PlanShape) -> StepInputs:
        inputs = self._views.get(shape)
        if inputs is None:
            if len(self._views) >= MAX_KEPT_VIEWS:
                self._views.clear()
            inputs = self._views[shape] = make_views(self.arena.device, shape)
        return inputs
