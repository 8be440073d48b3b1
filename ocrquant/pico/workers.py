"""Further processes that compute gradients for the training process, on cores of their own.

Parameters lie in shared memory. A worker takes them as they are, computes the gradient of a batch and adds it
to a shared sum; the training process takes whatever is there when it steps. So a worker on a busy core slows
nobody down; its gradients are at most one step old.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

NICENESS = 10


class GradientPool:
    """A sum of gradients in shared memory, weighted by crops."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Move the parameters to shared memory and make room for one gradient each."""
        self.parameters = parameters
        for parameter in parameters:
            parameter.data.share_memory_()
        self.sums = [torch.zeros_like(parameter).share_memory_() for parameter in parameters]
        self.has_gradient = torch.zeros(len(parameters), dtype=torch.bool).share_memory_()
        context = multiprocessing.get_context("fork")
        self.num_crops = context.Value("q", 0, lock=False)
        self.crops_seen = context.Value("q", 0, lock=False)
        self.lock: AbstractContextManager[bool] = context.Lock()

    def add(self, num_crops: int) -> None:
        """Add this process's gradients and forget them here."""
        with self.lock:
            for i, (parameter, total) in enumerate(zip(self.parameters, self.sums, strict=True)):
                if parameter.grad is not None:
                    total.add_(parameter.grad, alpha=num_crops)
                    self.has_gradient[i] = True
                parameter.grad = None
            self.num_crops.value += num_crops

    def take(self, own_crops: int) -> int:
        """Average the waiting gradients into this process's own; returns the crops behind the result."""
        with self.lock:
            waiting = int(self.num_crops.value)
            if not waiting:
                return own_crops
            share = 1.0 / (own_crops + waiting)
            for i, (parameter, total) in enumerate(zip(self.parameters, self.sums, strict=True)):
                if parameter.grad is not None:
                    parameter.grad.mul_(own_crops * share).add_(total, alpha=share)
                elif self.has_gradient[i]:
                    parameter.grad = total * share
                total.zero_()
            self.has_gradient.zero_()
            self.num_crops.value = 0
            return own_crops + waiting


def start(count: int, work: Callable[[int], Any]) -> None:
    """Fork `count` workers that call `work(number)`; they end with this process.

    Where the process may use several cores, it keeps the first for itself and gives each worker one of the
    others.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    context = multiprocessing.get_context("fork")
    for number in range(1, count + 1):
        core = cores[number % len(cores)] if len(cores) > 1 else None
        context.Process(target=_enter, args=(work, number, core), daemon=True).start()
    if len(cores) > 1 and count:
        os.sched_setaffinity(0, {cores[0]})


def _enter(work: Callable[[int], Any], number: int, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    os.nice(NICENESS - os.nice(0))
    torch.set_num_threads(1)
    work(number)
