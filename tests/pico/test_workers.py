"""Gradients of other processes are averaged by crops, and a forked worker really adds some."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ocrquant.pico import workers


def test_gradients_are_averaged_by_crops_and_used_once():
    kept, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    pool = workers.GradientPool([kept, other])
    kept.grad, other.grad = torch.tensor([4.0, 8.0]), torch.ones(3)
    pool.add(3)
    assert kept.grad is None
    kept.grad = torch.tensor([8.0, 0.0])
    assert pool.take(1) == 4
    assert kept.grad.tolist() == [5.0, 6.0]
    assert other.grad.tolist() == [0.75, 0.75, 0.75]
    assert pool.take(1) == 1
    assert kept.grad.tolist() == [5.0, 6.0]


@pytest.fixture
def cores() -> Iterator[None]:
    """Starting workers binds this process to a core; the next tests must not inherit that."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("cores")
def test_a_worker_sees_the_parameters_as_they_are_now():
    parameter = nn.Parameter(torch.zeros(1))
    pool = workers.GradientPool([parameter])

    def work(number: int) -> None:
        while float(parameter.detach()) == 0.0:
            time.sleep(0.01)
        parameter.grad = parameter.detach() * number
        pool.add(2)

    workers.start(1, work)
    with torch.no_grad():
        parameter.fill_(7.0)
    deadline = time.monotonic() + 60
    while not pool.num_crops.value:
        assert time.monotonic() < deadline, "the worker added nothing"
        time.sleep(0.01)
    parameter.grad = torch.zeros(1)
    assert pool.take(2) == 4
    assert parameter.grad.tolist() == [3.5]
