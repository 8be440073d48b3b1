"""Who computes what in the next step.

Every running request goes on in every step: one row each for answers, then parts of prompts as far as the
step's rows reach, then whoever waits and fits. A request enters with room for all its known tokens and grows
page by page. When pages run out, kept prefixes go first, then the youngest running request: it returns
everything, waits at the head of the queue, and later computes its prompt and its answer so far again. The
oldest running request never loses its pages, so something always ends.

Holds no tensor: counts, page numbers, and requests.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.drafting import DraftSource
from ocrquant.engine.plan import Chunk, Plan, Restore, Tables, Window
from ocrquant.engine.pools import Copies, Pools
from ocrquant.engine.prefix_cache import KeptPrefix, PrefixCache
from ocrquant.engine.request import Request, RequestState
from ocrquant.engine.request_queue import RequestQueue
from ocrquant.engine.window_policy import FixedWindow, WindowPolicy

__all__ = ["Scheduler"]


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    budget: int
    windows: list[Window] = field(default_factory=list)
    decode: list[Request] = field(default_factory=list)
    unfinished: list[Request] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    copies: list[Copies] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    encode: list[Request] = field(default_factory=list)
    forget: list[Request] = field(default_factory=list)


class Scheduler:
    """Waiting and running requests.

    Args:
        config: The engine's.
        pools: What running requests hold.
        prefixes: Kept prefixes; None to keep none.
        drafts: Guesses of what comes next; None for none.
        windows: Decides how many rows a request has in a step with guesses.

    Attributes:
        running: Oldest first.
        queue: Those that wait.
        num_steps: Steps planned so far.
        num_preemptions: Requests that lost their pages so far.
        draft_us: Time that guessing took in the latest step.
    """

    def __init__(
        self,
        config: EngineConfig,
        pools: Pools,
        prefixes: PrefixCache | None = None,
        drafts: DraftSource | None = None,
        windows: WindowPolicy | None = None,
    ) -> None:
        self.config = config
        self.pools = pools
        self.prefixes = prefixes
        self.drafts = drafts
        self.windows = windows or FixedWindow(config.max_window)
        self.queue = RequestQueue(config)
        self.running: list[Request] = []
        self.num_steps = 0
        self.num_preemptions = 0
        self.draft_us = 0.0
        # Whoever did not fit fits no sooner than somebody has left; until then nobody asks again.
        self._blocked: Request | None = None
        self._tables = Tables(pools.kv.table, pools.drafter.table if pools.drafter else None)

    def submit(self, request: Request) -> None:
        """Lets a request wait.

        Raises:
            QueueFullError: Too many wait already.
        """
        self.queue.push(request, self.num_steps)

    def cancel(self, request: Request) -> None:
        """Takes a request out, wherever it is; what it holds is free at once."""
        if request.state is RequestState.RUNNING:
            self.finish(request)
            request.state = RequestState.CANCELLED
        else:
            self.queue.remove(request)

    def finish(self, request: Request) -> None:
        """Takes a running request out; what it holds is free at once."""
        self._stop(request)
        request.state = RequestState.FINISHED

    def schedule(self) -> Plan | None:
        """The next step; None if nothing runs and nothing waits."""
        self.num_steps += 1
        draft = _Draft(self.config.max_step_tokens)
        self._continue_running(draft)
        self.draft_us = 0.0
        if self.drafts is not None and draft.decode:
            self._open_windows(draft, self.drafts)
        draft.budget -= len(draft.decode) + sum(1 + len(window.drafts) for window in draft.windows)
        for request in draft.unfinished:
            self._compute(request, draft)
        if not draft.forget:  # whoever was preempted just now would only come back to be preempted again
            self._admit_waiting(draft)
        has_rows = bool(draft.windows or draft.decode or draft.chunks)
        assert has_rows or not (self.running or self.queue), "somebody must go on"
        if not has_rows:
            return None
        return Plan(
            drafted=tuple(draft.windows),
            decode=tuple(draft.decode),
            prefill=tuple(sorted(draft.chunks, key=lambda chunk: not chunk.samples)),
            tables=self._tables,
            copies=tuple(draft.copies),
            restores=tuple(draft.restores),
            encode=tuple(draft.encode),
            forget=tuple(draft.forget),
        )

    def check_integrity(self) -> None:
        """Compares all pools with the running requests and the kept prefixes.

        Raises:
            AssertionError: Something is lost, or a request is in a state that its place does not allow.
        """
        holdings = []
        for request in self.running:
            assert request.state is RequestState.RUNNING, f"request {request.id} runs as {request.state}"
            assert request.holding is not None, f"request {request.id} runs without pages"
            assert request.num_computed < request.num_tokens, f"request {request.id} has nothing to compute"
            holdings.append(request.holding)
        assert [r.number for r in self.running] == sorted(r.number for r in self.running), "order is lost"
        self.pools.check_integrity(holdings, self.prefixes.prefixes() if self.prefixes else ())

    def _continue_running(self, draft: _Draft) -> None:
        """Gives running requests, oldest first, room for one more token; sorts them by what is next."""
        page_size = self.config.page_size
        place = 0
        while place < len(self.running):
            request = self.running[place]
            known = request.num_tokens
            assert request.holding is not None, "a running request has pages"
            if known > request.holding.num_pages * page_size and not self._grow(request, draft):
                return  # it was the youngest and gave up its own pages
            if request.output_ids and known - request.num_computed == 1:
                draft.decode.append(request)
            else:
                draft.unfinished.append(request)
            place += 1

    def _open_windows(self, draft: _Draft, drafts: DraftSource) -> None:
        """Turns single rows into windows, all of one length, where guesses are there and have room.

        Room for guesses is never taken from another request.
        """
        most = self.windows.rows(len(draft.decode)) - 1
        able = [request for request in draft.decode if self._has_room(request, most)] if most else []
        if not able:
            return
        began = time.perf_counter_ns()
        proposed = drafts.propose(able, most, self._tables)
        self.draft_us = (time.perf_counter_ns() - began) / 1000
        length = max(map(len, proposed))
        alone = drafts.alone or [()] * len(able)
        for request, guesses, by_slots in zip(able, proposed, alone, strict=True):
            if guesses:
                # Windows have one length; what fills one up counts only where it happens to be right.
                filled = guesses + guesses[-1:] * (length - len(guesses))
                draft.windows.append(Window(request, filled, len(guesses), by_slots))
        windowed = {window.request for window in draft.windows}
        draft.decode = [request for request in draft.decode if request not in windowed]

    def _has_room(self, request: Request, most: int) -> bool:
        """Whether there is room for so many guesses; takes it."""
        assert request.holding is not None, "a running request has pages"
        last = request.num_tokens + most
        return last <= self.config.max_positions and self.pools.grow(request.holding, last)

    def _grow(self, request: Request, draft: _Draft) -> bool:
        """Room for all known tokens of a request; false if the request itself had to give way."""
        assert request.holding is not None, "a running request has pages"
        wanted = self.config.pages_for(request.num_tokens) - request.holding.num_pages
        while not self.pools.grow(request.holding, request.num_tokens):
            if self.prefixes is not None and self.prefixes.make_room(wanted):
                continue
            youngest = self.running[-1]
            assert len(self.running) > 1, "a request that does not fit alone is refused at submission"
            self._stop(youngest)
            youngest.state = RequestState.PREEMPTED
            youngest.num_preemptions += 1
            self.num_preemptions += 1
            self.queue.push_front(youngest)
            draft.forget.append(youngest)
            if youngest is request:
                return False
        return True

    def _stop(self, request: Request) -> None:
        """Takes a running request off its pages."""
        assert request.holding is not None, "a running request has pages"
        self._blocked = None
        self.running.remove(request)
        self.pools.give(request.holding)
        request.holding = None
        request.num_computed = 0
        request.images_encoded = False

    def _admit_waiting(self, draft: _Draft) -> None:
        """Lets requests enter in their order until one does not fit: none overtakes it."""
        while draft.budget > 0 and len(self.running) < self.config.max_requests:
            request = self.queue.peek()
            if request is None or request is self._blocked:
                return
            if not self._enter(request, draft):
                self._blocked = request
                return
            self.queue.pop()
            request.state = RequestState.RUNNING
            bisect.insort(self.running, request, key=lambda r: r.number)
            self._compute(request, draft)

    def _enter(self, request: Request, draft: _Draft) -> bool:
        """Gives a request a slot and pages for all its known tokens, if they are there."""
        if self.pools.slots.num_free == 0:
            return False
        found = None if self.prefixes is None else self.prefixes.longest(request)
        if found is not None and self._take(request, found):
            assert self.prefixes is not None, "a prefix was found"
            assert request.holding is not None, "pages were taken"
            self.prefixes.num_hits += 1
            copies = self.pools.copies_of(request.holding, found.prefix)
            draft.copies += [copies] if copies else []
            draft.restores += [Restore(request.slot, found.snapshot)] if found.snapshot else []
            return True
        # Without the prefix a request needs more new pages, but those of the prefix can be among them.
        return self._take(request, None)

    def _take(self, request: Request, found: KeptPrefix | None) -> bool:
        num_tokens = 0 if found is None else found.prefix.num_tokens
        kept = num_tokens // self.config.page_size
        # A page to grow for each that runs, so that nobody is let in only to be preempted at once.
        wanted = self.config.pages_for(request.num_tokens) - kept + len(self.running)
        if self.prefixes is None:
            enough = self.pools.num_free_pages >= wanted
        else:
            enough = self.prefixes.make_room(wanted, found)
        if not enough:
            return False
        request.holding = self.pools.take(request.num_tokens, found.prefix if found else None)
        request.num_computed = request.num_cached = num_tokens
        return request.holding is not None

    def _compute(self, request: Request, draft: _Draft) -> None:
        """Plans the next part of a request's known tokens, as far as the rows of the step reach."""
        start, known = request.num_computed, request.num_tokens
        end = min(known, start + draft.budget)
        if end == start:
            return
        if self.prefixes is not None:
            end = self.prefixes.cut(request, start, end)
        draft.budget -= end - start
        draft.chunks.append(Chunk(request, start, end - start, samples=end == known))
        if not request.images_encoded and request.prompt.image_runs(start, end):
            request.images_encoded = True
            draft.encode.append(request)
