"""Who prepares pages: worker processes, or the calling thread.

Knows how many pages are on their way and when a worker has died; knows nothing of what is in a page.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from ocrquant.engine.preparing.process import WorkerProcess
from ocrquant.engine.preparing.task import PageTask, PreparedPage, prepare
from ocrquant.errors import EngineError, ImageError
from ocrquant.models.processing.pages import PageEncoder

__all__ = ["InlinePreparer", "Preparer", "WorkerPool", "default_workers", "make_preparer"]

MAX_WORKERS = 64
DEPTH = 2
"""Tasks that a worker has at once: one that it prepares and one that it finds when it is done."""
MAX_ATTEMPTS = 3
"""A worker that cannot start may have been killed for memory; one that cannot start so often never will."""


class Preparer(Protocol):
    """Prepares pages in the order that suits it."""

    def submit(self, ticket: int, task: PageTask) -> None:
        """Lets a page be prepared; never waits."""

    def take(self, *, wait: bool) -> tuple[int, PreparedPage] | None:
        """A page that is ready; None if there is none and `wait` is false."""

    @property
    def is_inline(self) -> bool:
        """Whether `take` does the work itself, so that it is asked only for what is needed now."""

    def close(self) -> None:
        """Drops what is not done, and ends all processes."""


def default_workers(device: str = "cpu", num_cores: int | None = None) -> int:
    """Worker processes where nobody states a number.

    On a CPU one, if there is a core besides the engine's: reading a page there costs about a hundred times
    what opening it does, so that one worker keeps up with any engine and further ones gain nothing, while
    without any all pages in progress wait for each that is opened (80 ms for two million pixels). A GPU
    reads a page in the time in which one worker opens one or two, so that a second pays where cores are
    left for it; more break up the arrivals that a step could take together.

    Args:
        device: Where the model is.
        num_cores: Cores that this process may use; None looks.
    """
    cores = _num_cores() if num_cores is None else num_cores
    if cores < 2:
        return 0
    return 1 if device.startswith("cpu") or cores < 4 else 2


def make_preparer(encoder: PageEncoder, workers: int) -> Preparer:
    """What prepares pages.

    Args:
        encoder: Encodes them.
        workers: Processes; 0 prepares in the calling thread.

    Raises:
        EngineError: A number out of range.
    """
    if not 0 <= workers <= MAX_WORKERS:
        expected = f"0 to {MAX_WORKERS}"
        raise EngineError("workers", expected=expected, given=workers, fix="correct the number")
    return WorkerPool(encoder, workers) if workers else InlinePreparer(encoder)


class InlinePreparer:
    """Prepares pages in the calling thread, one each time it is asked.

    Args:
        encoder: Encodes them.
    """

    is_inline = True

    def __init__(self, encoder: PageEncoder) -> None:
        self._encoder = encoder
        self._tasks: deque[tuple[int, PageTask]] = deque()

    def submit(self, ticket: int, task: PageTask) -> None:
        """See `Preparer`."""
        self._tasks.append((ticket, task))

    def take(self, *, wait: bool) -> tuple[int, PreparedPage] | None:
        """See `Preparer`."""
        if not self._tasks:
            return None
        ticket, task = self._tasks.popleft()
        return ticket, prepare(self._encoder, task)

    def close(self) -> None:
        """See `Preparer`."""
        self._tasks.clear()


class _Job(NamedTuple):
    ticket: int
    task: PageTask
    num_deaths: int = 0


class WorkerPool:
    """Worker processes and a thread for each that feeds it; started with the first page.

    Args:
        encoder: Encodes pages; goes to the workers.
        num_workers: At least 1.
    """

    is_inline = False

    def __init__(self, encoder: PageEncoder, num_workers: int) -> None:
        self._encoder, self._num_workers = encoder, num_workers
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._ready: SimpleQueue[tuple[int, PreparedPage] | EngineError] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._processes: dict[threading.Thread, WorkerProcess] = {}
        self._num_pending = 0

    @property
    def process_ids(self) -> list[int]:
        """Of the workers that run now."""
        with self._lock:
            return [process.id for process in self._processes.values()]

    def submit(self, ticket: int, task: PageTask) -> None:
        """See `Preparer`."""
        assert not self._closed, "the pool is closed"
        self._num_pending += 1
        self._jobs.put(_Job(ticket, task))
        if len(self._threads) < min(self._num_workers, self._num_pending):
            thread = threading.Thread(target=self._feed, name="ocrquant-preparing", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self, *, wait: bool) -> tuple[int, PreparedPage] | None:
        """See `Preparer`.

        Raises:
            EngineError: A worker cannot even start.
        """
        if wait and self._num_pending == 0:
            return None
        try:
            ready = self._ready.get(block=wait)
        except Empty:
            return None
        if isinstance(ready, EngineError):
            raise ready
        self._num_pending -= 1
        return ready

    def close(self) -> None:
        """See `Preparer`."""
        with self._lock:
            self._closed = True
            for process in self._processes.values():
                process.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _feed(self) -> None:
        """One worker and those that replace it, from first to last."""
        backlog: deque[_Job] = deque()
        num_attempts = 0
        try:
            while self._fetch(backlog):
                process = self._start()
                if process is None:
                    return
                num_attempts += 1
                try:
                    process.greet(self._encoder)
                    num_attempts = 0
                    self._serve(process, backlog)
                except (EOFError, OSError):
                    self._bury(process, backlog)
                except EngineError:
                    if num_attempts == MAX_ATTEMPTS:
                        raise
                finally:
                    self._forget(process)
        except EngineError as error:
            self._ready.put(error)
        except Exception as error:
            # Else the engine would wait for this thread for ever.
            self._ready.put(EngineError("preparing pages", expected="tasks that can be sent", given=error))

    def _serve(self, process: WorkerProcess, backlog: deque[_Job]) -> None:
        """Until the pool is closed; ends with an error when the worker dies.

        The backlog has the jobs whose answer is missing: those that the worker has, oldest first, then those
        that it is still to get.
        """
        num_sent = 0
        while self._fetch(backlog):
            while num_sent < DEPTH and (num_sent < len(backlog) or self._fetch_one(backlog)):
                process.send((backlog[num_sent].ticket, backlog[num_sent].task))
                num_sent += 1
            ticket, prepared = process.receive()
            # Workers answer in order.
            assert ticket == backlog.popleft().ticket, "an answer to another question"
            num_sent -= 1
            self._ready.put((ticket, prepared))

    def _fetch(self, backlog: deque[_Job]) -> bool:
        """Makes sure of one job; false once the pool is closed."""
        if not backlog and not self._closed:
            job = self._jobs.get()
            if job is not None:
                backlog.append(job)
        return not self._closed

    def _fetch_one(self, backlog: deque[_Job]) -> bool:
        """One more job, if there is one."""
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return False
        if job is None:
            self._jobs.put(None)  # for whoever waits for it
            return False
        backlog.append(job)
        return True

    def _start(self) -> WorkerProcess | None:
        with self._lock:
            if self._closed:
                return None
            process = self._processes[threading.current_thread()] = WorkerProcess()
            return process

    def _forget(self, process: WorkerProcess) -> None:
        with self._lock:
            self._processes.pop(threading.current_thread())
        process.end()

    def _bury(self, process: WorkerProcess, backlog: deque[_Job]) -> None:
        """The page that a dead worker was preparing gets one more try; the others are not to blame."""
        if self._closed:
            return
        job = backlog.popleft()
        if job.num_deaths == 0:
            backlog.appendleft(job._replace(num_deaths=1))
            return
        error = ImageError(
            f"page {job.task.id}",
            expected="an image that a worker process survives",
            given=f"a worker that ended twice, {process.end()}",
            fix="replace the file or remove it, or give the workers more memory",
        )
        self._ready.put((job.ticket, PreparedPage(None, error, 0.0)))


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
