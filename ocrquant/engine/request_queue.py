"""Requests that wait: those that lost their pages first, then the others by policy.

Knows the order and the limit; knows nothing of pages.
"""

from __future__ import annotations

import heapq

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.request import Request, RequestState
from ocrquant.errors import QueueFullError

__all__ = ["RequestQueue"]

AGING_TOKENS_PER_STEP = 4
"""Shortest first: a step of waiting counts as much as so many tokens less. Bounds how long a long prompt is
overtaken: by 1,000 tokens shorter for 250 steps."""

MIN_SWEPT = 16


class RequestQueue:
    """A queue with three ends: enter by policy, return to the head, leave from anywhere.

    Args:
        config: Policy and limit.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._heap: list[tuple[int, int, int, Request]] = []
        self._num_waiting = 0
        self._num_preempted = 0

    def __len__(self) -> int:
        return self._num_waiting + self._num_preempted

    @property
    def num_waiting(self) -> int:
        """Requests that have not entered yet; the limit is on these."""
        return self._num_waiting

    def push(self, request: Request, step: int) -> None:
        """Adds a new request.

        Args:
            request: Is waiting.
            step: Steps so far.

        Raises:
            QueueFullError: As many are waiting as the engine accepts.
        """
        if self._num_waiting >= self._config.queue_limit:
            raise QueueFullError(
                f"request {request.id}",
                expected=f"fewer than {self._config.queue_limit} waiting requests",
                given=self._num_waiting,
                fix="send it again once an answer is complete, or raise engine.queue_limit",
            )
        # All requests age at one rate, so that their order never changes and a heap keeps it.
        shortest = self._config.policy == "shortest"
        rank = len(request.prompt) + AGING_TOKENS_PER_STEP * step if shortest else 0
        heapq.heappush(self._heap, (1, rank, request.number, request))
        self._num_waiting += 1

    def push_front(self, request: Request) -> None:
        """Puts a preempted request before all that wait, behind older preempted ones."""
        heapq.heappush(self._heap, (0, 0, request.number, request))
        self._num_preempted += 1

    def peek(self) -> Request | None:
        """Who enters next."""
        while self._heap and self._heap[0][3].state is RequestState.CANCELLED:
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def pop(self) -> Request:
        """Takes who enters next."""
        request = self.peek()
        assert request is not None, "the queue is empty"
        heapq.heappop(self._heap)
        self._left(request)
        return request

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it is, and calls it cancelled."""
        self._left(request)
        request.state = RequestState.CANCELLED
        # It stays in the heap until it comes up, unless such leftovers, with their pages' pixels, are many.
        if len(self._heap) > 2 * len(self) + MIN_SWEPT:
            self._heap = [entry for entry in self._heap if entry[3].state is not RequestState.CANCELLED]
            heapq.heapify(self._heap)

    def _left(self, request: Request) -> None:
        if request.state is RequestState.PREEMPTED:
            self._num_preempted -= 1
        else:
            assert request.state is RequestState.WAITING, f"request {request.id} does not wait"
            self._num_waiting -= 1
