"""One step as the scheduler decided it, and what runs it.

The border between policy and computation: a `Plan` holds no tensor, a `Runner` decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ocrquant.engine.page_table import PageTable
from ocrquant.engine.pools import Copies
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.request import Request

__all__ = ["Chunk", "Plan", "PlanShape", "Restore", "Runner", "Sampled", "Snapshot", "Tables", "Window"]


class Snapshot(Protocol):
    """A state kept by the runner; opaque but for its size."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        ...


class Window(NamedTuple):
    """Rows of one request to verify: its last known token, then drafted ones; made in every step.

    Attributes:
        request: All of its known tokens but the last are computed.
        drafts: Tokens after the last known one.
        num_guessed: How many of them somebody guessed; the others fill the window up.
        alone: What a drafter's slots would have guessed without a selector; empty where that is the same.
    """

    request: Request
    drafts: tuple[int, ...]
    num_guessed: int
    alone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Known tokens of one request to compute: a part of its prompt, and of its answer after a preemption.

    Attributes:
        request: Its first `start` tokens are computed.
        start: First token of the part.
        num_rows: Tokens of the part.
        samples: Whether the part reaches the last known token, so that a new one is sampled after it.
    """

    request: Request
    start: int
    num_rows: int
    samples: bool

    @property
    def end(self) -> int:
        """Token after the part."""
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class Tables:
    """Page tables of all slots on the host.

    Attributes:
        kv: Of the target.
        drafter: Of the drafter; None without one.
    """

    kv: PageTable
    drafter: PageTable | None


@dataclass(frozen=True, slots=True)
class Restore:
    """A kept state to put into a slot before the step."""

    slot: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class PlanShape:
    """The counts that fix every shape of a step.

    Attributes:
        drafted: Requests with a window.
        window: Rows of each window; 0 without windows.
        decode: Requests with one row.
        prefill_rows: Rows of all chunks.
        prefill: Chunks.
        logit_rows: Rows whose logits are wanted.
        images: Whether a row stands for a part of an image.
    """

    drafted: int
    window: int
    decode: int
    prefill_rows: int
    prefill: int
    logit_rows: int
    images: bool

    @property
    def num_rows(self) -> int:
        """All rows of the step."""
        return self.drafted * self.window + self.decode + self.prefill_rows

    @property
    def num_requests(self) -> int:
        """All requests of the step."""
        return self.drafted + self.decode + self.prefill

    @property
    def graph_key(self) -> tuple[int, int, int] | None:
        """Names a step whose program can be captured and replayed: without prompts it fixes all shapes.

        Made of the classes' counts. The length of a request's rows never decides: a part of a prompt as long
        as a window is not a window.
        """
        return None if self.prefill else (self.drafted, self.window, self.decode)


@lru_cache(maxsize=1024)
def _without_prompts(drafted: int, window: int, decode: int) -> PlanShape:
    """The shape of nearly every step, made once for each way to go on."""
    return PlanShape(
        drafted=drafted,
        window=window,
        decode=decode,
        prefill_rows=0,
        prefill=0,
        logit_rows=drafted * window + decode,
        images=False,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step computes, in the order of its rows: windows, then single rows, then chunks.

    Sampled, in this order: every row of every window, every single row, and the last row of every chunk with
    `samples`; chunks without come last.

    Attributes:
        drafted: Windows to verify, all of one length.
        decode: Requests whose last known token is computed, one row each.
        prefill: Parts of known tokens.
        tables: Where the pages of each slot are; valid until the scheduler is asked again.
        copies: Pages to copy before the step, one after another.
        restores: States to restore before the step, after the copies.
        encode: Requests whose images have to be encoded before the step, all in one pass. The runner keeps
            what comes out until it is told to forget the request.
        forget: Requests that were preempted: their encoded images are needed no more.
    """

    drafted: tuple[Window, ...]
    decode: tuple[Request, ...]
    prefill: tuple[Chunk, ...]
    tables: Tables
    copies: tuple[Copies, ...] = ()
    restores: tuple[Restore, ...] = ()
    encode: tuple[Request, ...] = ()
    forget: tuple[Request, ...] = ()
    shape: PlanShape = field(init=False)

    def __post_init__(self) -> None:
        window = 1 + len(self.drafted[0].drafts) if self.drafted else 0
        assert all([1 + len(w.drafts) == window for w in self.drafted]), "windows have one length"
        shape = _without_prompts(len(self.drafted), window, len(self.decode))
        if self.prefill:
            in_order = sorted(self.prefill, key=lambda c: not c.samples) == list(self.prefill)
            assert in_order, "sampled chunks first"
            shape = replace(
                shape,
                prefill_rows=sum(chunk.num_rows for chunk in self.prefill),
                prefill=len(self.prefill),
                logit_rows=shape.logit_rows + sum(c.samples for c in self.prefill),
                images=any(c.request.prompt.image_runs(c.start, c.end) for c in self.prefill),
            )
        object.__setattr__(self, "shape", shape)

    @property
    def going_on(self) -> tuple[Request, ...]:
        """Requests with a window, then those with a single row."""
        return (*(window.request for window in self.drafted), *self.decode) if self.drafted else self.decode

    @property
    def sampled(self) -> list[Request]:
        """The requests of the sampled rows that are not in windows, in the order of their tokens."""
        return [*self.decode, *(chunk.request for chunk in self.prefill if chunk.samples)]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The only things that a step reads back from the device; valid until the next step.

    Attributes:
        tokens: int32 [M], a token for each sampled row, in the order of the plan.
        gaps: float32 [M], largest minus second largest logit.
    """

    tokens: npt.NDArray[np.int32]
    gaps: npt.NDArray[np.float32]


class Runner(Protocol):
    """What computes a step.

    Calls of one step, in this order: `forget`, `copy_pages`, `restore`, `run`, `commit`, `snapshot`,
    `forget`.
    """

    @property
    def page_bytes(self) -> int:
        """Memory of one page of every paged cache, all layers."""
        ...

    def check(self, prompt: Prompt) -> None:
        """Refuses a prompt that could not be computed, before it shares a step with others.

        Raises:
            RequestError: Its tokens or images are not of the model; names what is wrong.
        """
        ...

    def run(self, plan: Plan) -> Sampled:
        """Encodes images, computes all rows of a plan and samples.

        Args:
            plan: With at least one row. Nothing of it may be read after the call has returned.
        """
        ...

    def commit(self, plan: Plan, accepted: Sequence[int]) -> None:
        """Keeps the first rows of each window of a plan that was run, and undoes the others.

        Args:
            plan: With at least one window.
            accepted: Rows that count, at least one of each window.
        """
        ...

    def copy_pages(self, copies: tuple[Copies, ...]) -> None:
        """Copies pages in every layer, one after another."""
        ...

    def snapshot(self, slot: int) -> Snapshot:
        """Keeps the state of a slot: every recurrent layer, with anything that is not folded into it yet."""
        ...

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Puts a kept state into a slot; the snapshot stays usable."""
        ...

    def forget(self, request: Request) -> None:
        """Drops the encoded images of a request, if there are any."""
        ...
