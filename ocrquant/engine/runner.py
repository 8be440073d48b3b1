"""Computes the steps that the scheduler decides: images, rows, samples.

Holds all tensors of the engine and no policy. A step is planned (`StepBuilder` writes and uploads it) and
then run on buffers that were there before: captured once for each shape and replayed. Nothing is read back
but sampled tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.device import Device
from ocrquant.engine.graphs import BatchClasses, count_accepted
from ocrquant.engine.metadata import StepBuilder, StepInputs
from ocrquant.engine.plan import Plan, PlanShape, Sampled, Snapshot
from ocrquant.engine.pools import Copies
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.request import Request
from ocrquant.engine.state import ReplayPool, StatePool, StateSnapshot
from ocrquant.errors import RequestError
from ocrquant.kernels.sample import sample
from ocrquant.models import Caches, Model
from ocrquant.models.drafter.model import Drafter
from ocrquant.models.processing import PixelTable

__all__ = ["MAX_CAPTURES", "ModelRunner"]

MAX_CAPTURES = 256
"""Captured steps that are kept; the least recently replayed one goes first."""

GraphKey = tuple[int, int, int] | PlanShape


class ModelRunner:
    """Runs steps of one model.

    Args:
        model: With scratch buffers for `config.max_step_tokens` rows.
        config: The engine's.
        device: Where the model is.
        state: The recurrent states; None for a model without them.
        pixels: From the patches of the prompts to what the vision side reads; None for text alone.
        drafter: What drafts for this model; every step leaves keys and values of its rows there.

    Attributes:
        caches: Keys, values and states of all requests.
        num_captures: Steps that were captured so far.
        num_replays: Steps that were replayed so far.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        device: Device,
        state: StatePool | None,
        pixels: PixelTable | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        spec, rows = model.spec, config.max_requests * config.max_window
        self._pixels, self._drafter = pixels, drafter
        self._model, self._config, self._device, self._state = model, config, device, state
        upload = None if device.reads_host_memory else device.upload
        self._builder = StepBuilder(config, device.torch_device, upload)
        self._classes = BatchClasses(config.max_requests, config.max_window, device.batch_sizes)
        self.caches = _make_caches(model, config, device, state)
        self._logits = device.empty((rows, spec.vocab), torch.float32)
        self._tokens = device.empty((rows,), torch.int32)
        self._gaps = device.empty((rows,), torch.float32)
        self._read_back = device.read_back(self._tokens, self._gaps)
        self._image_rows = device.empty((config.max_step_tokens, spec.hidden))
        self._images: dict[Request, Tensor] = {}
        self._window: list[int] = []
        # The states whose windows the host opens and commits; elsewhere the step does it.
        self._windowed = None if device.commits_in_step else state
        self._graphs: OrderedDict[GraphKey, Callable[[], None]] = OrderedDict()
        self.num_captures = 0
        self.num_replays = 0

    @property
    def page_bytes(self) -> int:
        """Memory of one page of keys and values, all layers, those of a drafter included."""
        own = sum(cache[0].nbytes for cache in (*self.caches.k, *self.caches.v))
        return own + (0 if self._drafter is None else self._drafter.page_bytes)

    @property
    def num_folds(self) -> int:
        """Folds of ReplaySSM's records so far; 0 with other states."""
        return self._state.flush_count if isinstance(self._state, ReplayPool) else 0

    @property
    def logits(self) -> Tensor:
        """float32 [rows, vocabulary]: those of the last step, in the order of its sampled rows.

        The next step overwrites them; nothing in the engine reads them.
        """
        return self._logits

    @property
    def vocab(self) -> int:
        """Logits of a row."""
        return self._model.spec.vocab

    @property
    def is_native(self) -> bool:
        """Whether compiled kernels compute, so that no result depends on what else is in a step."""
        return self._device.is_native

    def check(self, prompt: Prompt) -> None:
        """See `engine.plan.Runner`."""
        spec = self._model.spec
        if int(prompt.tokens.min()) < 0 or int(prompt.tokens.max()) >= spec.vocab:
            given = f"{prompt.tokens.min()} to {prompt.tokens.max()}"
            raise _refused("prompt.tokens", f"tokens from 0 to {spec.vocab - 1}", given)
        if not prompt.images:
            return
        if self._pixels is None or spec.vision is None:
            raise _refused("prompt.images", "none, for a model of text alone", len(prompt.images))
        values, merge = self._pixels.spec.frame_values, spec.vision.merge_size
        for number, image in enumerate(prompt.images):
            name = f"prompt.images[{number}]"
            frames, rows, columns = image.grid
            if min(image.grid) < 1 or rows % merge or columns % merge:
                raise _refused(name, f"a grid with sides in multiples of {merge}", image.grid)
            count = frames * rows * columns
            if image.num_tokens * merge**2 != count:
                raise _refused(name, f"{count // merge**2} tokens for grid {image.grid}", image.num_tokens)
            kind = getattr(image.pixels, "shape", None), getattr(image.pixels, "dtype", None)
            if kind != ((count, values), np.uint8):
                raise _refused(name, f"patches uint8 [{count}, {values}]", kind)

    def run(self, plan: Plan) -> Sampled:
        """See `engine.plan.Runner`."""
        shape = self._classes.pad(plan.shape) if self._device.can_capture else plan.shape
        if self._classes.has(shape) and self._device.can_capture and shape.graph_key not in self._graphs:
            self._capture_class(shape)  # windows of another length than the longest
        inputs = self._prepare(plan, shape)
        if plan.drafted and self._windowed is not None:
            self._window = self._padded([window.request.slot for window in plan.drafted], shape.drafted)
            self._windowed.begin_window(self._window, shape.window)
        self._launch(shape, inputs)
        return Sampled(*self._read_back(plan.shape.logit_rows))

    def commit(self, plan: Plan, accepted: Sequence[int]) -> None:
        """See `engine.plan.Runner`; keys and values need nothing, later rows take their places."""
        if self._windowed is not None:
            capture = self._device.capture if self._device.can_capture_prompts else None
            self._windowed.commit(self._window, self._padded(accepted, len(self._window)), capture)

    def capture_all(self) -> None:
        """Captures every batch class before the first request, the largest first.

        Each runs a few times with rows that belong to nobody. Where the device has no classes, or a step of
        one cannot be captured, nothing more is.
        """
        for shape in self._classes.shapes():
            if self._device.can_capture:
                self._capture_class(shape)

    def _capture_class(self, shape: PlanShape) -> None:
        """Captures a step in which every row belongs to nobody: it may run, and changes nothing."""
        assert shape.graph_key is not None, "a class has no parts of prompts"
        inputs, nobody = self._builder.build_padding(shape), self._padded((), shape.drafted)
        state = self._windowed if shape.drafted else None
        if state is not None:
            state.begin_window(nobody, shape.window)
        self._capture(shape.graph_key, shape, inputs)
        if state is not None:
            state.commit(nobody, nobody)

    def score(self, plan: Plan, rows: Sequence[int]) -> Tensor:
        """Computes a plan that samples nothing, for the logits of rows of one's own choice.

        Args:
            plan: Parts of prompts, none of which samples.
            rows: Among the rows of the plan.

        Returns:
            float32 [chosen rows, vocab], memory of its own.
        """
        inputs = self._prepare(plan, plan.shape)
        wanted = torch.tensor(rows, dtype=torch.int32).to(self._device.torch_device)
        logits = self._device.empty((len(rows), self.vocab), torch.float32)
        images = self._image_rows if plan.shape.images else None
        self._model.forward(replace(inputs.step, logit_rows=wanted), self.caches, images, logits)
        return logits

    def copy_pages(self, copies: tuple[Copies, ...]) -> None:
        """See `engine.plan.Runner`."""
        for copy in copies:
            source, target = copy.kv
            for cache in (*self.caches.k, *self.caches.v):
                cache[target] = cache[source]
            if copy.drafter is not None and self._drafter is not None:
                self._drafter.copy_page(*copy.drafter)

    def snapshot(self, slot: int) -> Snapshot:
        """See `engine.plan.Runner`."""
        return _NoState() if self._state is None else self._state.snapshot(slot)

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """See `engine.plan.Runner`."""
        if self._state is not None:
            assert isinstance(snapshot, StateSnapshot), "made by this runner"
            self._state.restore(slot, snapshot)

    def forget(self, request: Request) -> None:
        """See `engine.plan.Runner`."""
        self._images.pop(request, None)

    def _prepare(self, plan: Plan, shape: PlanShape) -> StepInputs:
        """Images, metadata, and the image rows of this step."""
        if plan.encode:
            self._encode(plan.encode)
        inputs = self._builder.build(plan, shape)
        if plan.shape.images:
            self._gather_images(plan)
        return inputs

    def _launch(self, shape: PlanShape, inputs: StepInputs) -> None:
        key = self._graph_key(shape)
        if key is None:
            self._compute(shape, inputs)
            return
        if key not in self._graphs and self._classes.sizes:
            self._compute(shape, inputs)  # a capture may run what it captures, and these rows are somebody's
            return
        if key not in self._graphs:
            self._capture(key, shape, inputs)
        self._graphs.move_to_end(key)
        self._graphs[key]()
        self.num_replays += 1

    def _capture(self, key: GraphKey, shape: PlanShape, inputs: StepInputs) -> None:
        self._graphs[key] = self._device.capture(lambda: self._compute(shape, inputs))
        self.num_captures += 1
        if len(self._graphs) > MAX_CAPTURES:
            self._graphs.popitem(last=False)

    @staticmethod
    def _padded(values: Sequence[int], count: int) -> list[int]:
        """Slots, or rows that count, of a class; -1 for who is nobody."""
        return [*values, *[-1] * (count - len(values))]

    def _graph_key(self, shape: PlanShape) -> GraphKey | None:
        """Names the program of a step; None where it has none.

        Where a capture costs no more than the launches it records, steps with parts of prompts have programs
        too, under all counts of their classes: pages of one size come again.
        """
        if not self._device.can_capture:
            return None
        if shape.graph_key is not None:
            return shape.graph_key
        return shape if self._device.can_capture_prompts else None

    def _compute(self, shape: PlanShape, inputs: StepInputs) -> None:
        """Everything between the upload and the read-back; only ops on buffers that stay where they are."""
        images = self._image_rows if shape.images else None
        logits = self._logits[: shape.logit_rows]
        own = self._state if shape.drafted and self._windowed is None else None
        slots = inputs.step.state.slots[: shape.drafted]
        if own is not None:
            own.begin_window(slots, shape.window)
        self._model.forward(inputs.step, self.caches, images, logits)
        if self._drafter is not None and inputs.drafter is not None and inputs.places is not None:
            self._drafter.project(inputs.places, inputs.drafter.slot_mapping)
        if shape.logit_rows:
            drawn, rows = inputs.sampling, slice(0, shape.logit_rows)
            how = (drawn.temperature, drawn.top_p, drawn.seed, drawn.position)
            sample(logits, *how, self._tokens[rows], self._gaps[rows])
        if own is not None:
            chosen = self._tokens[: shape.drafted * shape.window]
            own.commit(slots, count_accepted(inputs.step.tokens, chosen, shape.drafted))

    def _encode(self, requests: Sequence[Request]) -> None:
        """All images of some requests in one pass of the vision side."""
        images = [image for request in requests for image in request.prompt.images]
        assert self._pixels is not None, "a model that takes images comes with their table"
        pixels = self._pixels.pack([image.pixels for image in images])
        encoded = self._model.encode_images(pixels, [image.grid for image in images])
        sizes = [sum(image.num_tokens for image in request.prompt.images) for request in requests]
        self._images.update(zip(requests, encoded.split(sizes), strict=True))

    def _gather_images(self, plan: Plan) -> None:
        """The image rows of this step's chunks, one after another."""
        begin = 0
        for chunk in plan.prefill:
            first, last = chunk.request.prompt.image_rows(chunk.start, chunk.end)
            if last > first:
                self._image_rows[begin : begin + last - first] = self._images[chunk.request][first:last]
                begin += last - first


def _refused(thing: str, expected: str, given: object) -> RequestError:
    fix = "take the prompt from the model's own processor"
    return RequestError(thing, expected=expected, given=given, fix=fix)


class _NoState:
    """The state of a model without recurrent layers."""

    nbytes = 0


def _make_caches(model: Model, config: EngineConfig, device: Device, state: StatePool | None) -> Caches:
    attention, scales = model.spec.attention, model.kv_scales
    shape = (config.num_pages, config.page_size, attention.kv_heads, attention.head_dim)
    dtype = device.dtype if scales is None else torch.uint8
    k, v = ([device.empty(shape, dtype) for _ in range(attention.num_layers)] for _ in range(2))
    pairs = scales or [(1.0, 1.0)] * attention.num_layers
    return Caches(k, v, [key for key, _ in pairs], [value for _, value in pairs], state)
