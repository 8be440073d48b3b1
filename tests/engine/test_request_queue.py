"""Order, limit and cancellation of those that wait."""

import random

import pytest

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.request import Request, RequestState
from ocrquant.engine.request_queue import AGING_TOKENS_PER_STEP, RequestQueue
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import QueueFullError


def make_queue(policy="fcfs", limit=100):
    return RequestQueue(EngineConfig(max_positions=4096, num_pages=10, policy=policy, queue_limit=limit))


def make_request(number, length=1):
    return Request(str(number), number, text_prompt([1] * length, 1), SamplingParams(), 1)


def drain(queue):
    numbers = []
    while queue:
        request = queue.peek()
        assert queue.pop() is request
        request.state = RequestState.RUNNING
        numbers.append(request.number)
    return numbers


def preempt(queue, request):
    request.state = RequestState.PREEMPTED
    queue.push_front(request)


@pytest.mark.parametrize("policy", ["fcfs", "shortest"])
def test_preempted_requests_come_first_the_oldest_before_all(policy):
    queue = make_queue(policy)
    for number in (4, 5, 6):
        queue.push(make_request(number), 0)
    for number in (3, 1, 2):
        preempt(queue, make_request(number, 50))
    assert (len(queue), queue.num_waiting) == (6, 3)
    assert drain(queue) == [1, 2, 3, 4, 5, 6]


def test_a_long_prompt_is_overtaken_for_a_bounded_time():
    queue = make_queue("shortest")
    queue.push(make_request(0, 1 + 10 * AGING_TOKENS_PER_STEP), 0)
    for step in range(1, 14):
        queue.push(make_request(step), step)
    assert drain(queue) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 10, 11, 12, 13]


def test_the_limit_is_on_those_that_have_not_entered():
    queue = make_queue(limit=2)
    preempt(queue, make_request(0))
    waiting = [make_request(1), make_request(2)]
    for request in waiting:
        queue.push(request, 0)
    with pytest.raises(QueueFullError, match="request 3: expected fewer than 2 waiting requests, got 2"):
        queue.push(make_request(3), 0)
    queue.remove(waiting[0])
    queue.push(make_request(4), 0)
    assert drain(queue) == [0, 2, 4]


def test_removed_requests_do_not_stay_in_memory():
    queue = make_queue(limit=1000)
    requests = [make_request(number) for number in range(500)]
    for request in requests:
        queue.push(request, 0)
    for request in requests[1:]:
        queue.remove(request)
    assert len(queue) == 1
    assert len(queue._heap) < 40
    assert queue.peek() is requests[0]


def test_a_request_that_does_not_wait_cannot_be_removed():
    queue = make_queue()
    request = make_request(0)
    request.state = RequestState.RUNNING
    with pytest.raises(AssertionError, match="does not wait"):
        queue.remove(request)


def test_random_traffic_keeps_counts_and_order():
    rng, queue = random.Random(0), make_queue("fcfs")
    alive, number = {}, 0
    for _ in range(3000):
        if rng.random() < 0.4 and queue.num_waiting < 100:
            alive[number] = make_request(number)
            queue.push(alive[number], 0)
            number += 1
        elif rng.random() < 0.5 and alive:
            queue.remove(alive.pop(rng.choice(list(alive))))
        elif alive:
            request = queue.pop()
            first = min(alive, key=lambda n: (alive[n].state is not RequestState.PREEMPTED, n))
            assert request.number == first
            del alive[first]
            if rng.random() < 0.5:
                preempt(queue, request)
                alive[first] = request
        assert len(queue) == len(alive)
