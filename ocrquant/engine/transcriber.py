"""Many pages through an engine that is kept full: prepared beside it, submitted as they become ready.

Knows pages, tickets and times. Holds no policy of its own but how many pages are on their way at once, so
that ten thousand pages take no more memory than a hundred.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ocrquant.engine.loading import Runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.preparing import PageTask, PreparedPage, Preparer, default_workers, make_preparer
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.request import FinishReason, RequestOutput, RequestResult
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import EngineError, OcrQuantError

__all__ = ["PageResult", "Transcriber"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResult:
    """A page that is over.

    Attributes:
        page: What was asked.
        answer: What the engine gave; None where the page failed.
        error: Why it failed; None otherwise.
        prepare_seconds: Opening and encoding, wherever that was done.
        first_token_seconds: From the engine's accepting the page to its first token; 0 where it failed.
        total_seconds: From the engine's accepting the page to its last token; 0 where it failed.
    """

    page: PageTask
    answer: RequestResult | None = None
    error: OcrQuantError | None = None
    prepare_seconds: float = 0.0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def text(self) -> str:
        """The answer; empty where the page failed."""
        return "" if self.answer is None else self.answer.text

    @property
    def num_tokens(self) -> int:
        """Tokens generated, an end token counted."""
        return 0 if self.answer is None else self.answer.num_generated

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None where the page failed."""
        return None if self.answer is None else self.answer.finish_reason


@dataclass(slots=True)
class _Flight:
    """A page between being taken up and being over."""

    page: PageTask
    prompt: Prompt | None = None
    prepare_seconds: float = 0.0
    accepted: float = 0.0
    first_token: float | None = None


@dataclass(slots=True)
class _Flights:
    """All pages that are not over.

    Attributes:
        by_ticket: Each of them.
        ready: Tickets of those that wait for the engine, in order of readiness.
        submitted: Tickets of those that the engine has, by the names of their requests.
    """

    by_ticket: dict[int, _Flight] = field(default_factory=dict)
    ready: deque[int] = field(default_factory=deque)
    submitted: dict[str, int] = field(default_factory=dict)

    @property
    def num_preparing(self) -> int:
        return len(self.by_ticket) - len(self.ready) - len(self.submitted)


class Transcriber:
    """Reads pages with a runtime, whose engine nobody else uses meanwhile. Use as a context manager.

    Args:
        runtime: Reads.
        workers: Processes that prepare pages; 0 for none, None for the default of this machine.

    Raises:
        EngineError: A number of workers out of range.
    """

    def __init__(self, runtime: Runtime, workers: int | None = None) -> None:
        self._engine = runtime.engine
        count = default_workers(runtime.settings.device) if workers is None else workers
        self._preparer: Preparer = make_preparer(runtime.processor.encoder, count)
        self._num_tickets = 0
        config = runtime.engine.config
        # As many again as run at once: should all of them end in one step, as many are ready to enter.
        self._max_flights = 2 * max(config.max_requests, 2)
        # Whoever is first come is first served, so that waiting here or there is the same; here it costs no
        # place in the queue. The shortest can be chosen among those only that the engine knows.
        self._max_submitted = config.max_requests if config.policy == "fcfs" else self._max_flights

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all worker processes."""
        self._preparer.close()

    def read(self, pages: Iterable[PageTask], sampling: SamplingParams | None = None) -> Iterator[PageResult]:
        """Reads pages and gives each as soon as it is over.

        Pages are taken from `pages` as there is room for them. A page that cannot be read gives a result with
        an error. To stop early, close the iterator: whatever is on its way is then dropped.

        Args:
            pages: In the order in which they are taken up.
            sampling: How tokens are chosen, for all of them.

        Raises:
            EngineError: The engine has other requests, or no worker process can start.
        """
        if self._engine.has_work:
            fix = "let it finish first"
            raise EngineError("engine", expected="no other requests", given="some", fix=fix)
        flights, waiting = _Flights(), iter(pages)
        asked = sampling or SamplingParams()
        try:
            has_more = True
            while True:
                has_more = has_more and self._take_up(waiting, flights)
                yield from self._collect(flights)
                yield from self._submit(flights, asked)
                if self._engine.has_work:
                    for output in self._engine.step():
                        if (result := self._note(output, flights)) is not None:
                            yield result
                elif not flights.by_ticket and not has_more:
                    return
        finally:
            self._drop(flights)

    def _take_up(self, waiting: Iterator[PageTask], flights: _Flights) -> bool:
        """Lets pages be prepared while there is room; false once there are no more."""
        while len(flights.by_ticket) < self._max_flights:
            page = next(waiting, None)
            if page is None:
                return False
            self._num_tickets += 1
            flights.by_ticket[self._num_tickets] = _Flight(page)
            self._preparer.submit(self._num_tickets, page)
        return True

    def _collect(self, flights: _Flights) -> Iterator[PageResult]:
        """Takes pages that are ready; waits for one only where the engine has nothing else to do."""
        while flights.num_preparing:
            is_enough = len(flights.ready) + len(flights.submitted) >= self._max_submitted
            if self._preparer.is_inline and is_enough:
                return
            done = self._preparer.take(wait=not self._engine.has_work and not flights.ready)
            if done is None:
                return
            ticket, prepared = done
            if ticket not in flights.by_ticket:
                continue  # of a call that was closed early
            if (result := _prepared(ticket, prepared, flights)) is not None:
                yield result

    def _submit(self, flights: _Flights, sampling: SamplingParams) -> Iterator[PageResult]:
        """Gives the engine what it has room for."""
        engine, queue = self._engine, self._engine.scheduler.queue
        while (
            flights.ready
            and len(flights.submitted) < self._max_submitted
            and queue.num_waiting < engine.config.queue_limit
        ):
            ticket = flights.ready.popleft()
            flight = flights.by_ticket[ticket]
            assert flight.prompt is not None, "ready"
            flight.accepted = time.perf_counter()
            try:
                name = engine.submit(flight.prompt, sampling)
            except OcrQuantError as error:
                del flights.by_ticket[ticket]
                yield PageResult(page=flight.page, error=error, prepare_seconds=flight.prepare_seconds)
            else:
                flight.prompt = None  # the engine's own until it is over
                flights.submitted[name] = ticket

    def _note(self, output: RequestOutput, flights: _Flights) -> PageResult | None:
        """The result of a page if this output is its last."""
        ticket = flights.submitted.get(output.id)
        if ticket is None:
            return None
        flight, now = flights.by_ticket[ticket], time.perf_counter()
        flight.first_token = flight.first_token or now
        if output.result is None:
            return None
        del flights.submitted[output.id], flights.by_ticket[ticket]
        return PageResult(
            page=flight.page,
            answer=output.result,
            prepare_seconds=flight.prepare_seconds,
            first_token_seconds=flight.first_token - flight.accepted,
            total_seconds=now - flight.accepted,
        )

    def _drop(self, flights: _Flights) -> None:
        """Whatever is still on its way."""
        for name in flights.submitted:
            self._engine.cancel(name)
        if flights.submitted and not self._engine.has_failed:
            self._engine.step()  # hands over their last outputs


def _prepared(ticket: int, prepared: PreparedPage, flights: _Flights) -> PageResult | None:
    """The result of a page if it could not be prepared; else it is ready."""
    flight = flights.by_ticket[ticket]
    if prepared.encoded is None:
        del flights.by_ticket[ticket]
        return PageResult(page=flight.page, error=prepared.error, prepare_seconds=prepared.seconds)
    flight.prompt, flight.prepare_seconds = page_prompt(prepared.encoded), prepared.seconds
    flights.ready.append(ticket)
    return None
