"""Which implementation of an op runs: the native one or the reference, and why.

The choice depends on the device and the dtype of the activations, never on sizes or contents. The variable
``OCRQUANT_KERNELS`` forces it. Knows names of ops; knows no op.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from ocrquant import env
from ocrquant.errors import DeviceError
from ocrquant.kernels.extension import extension, extension_state, missing_reason

__all__ = ["Choice", "choices", "count_launches", "note_references", "obstacle_to_native", "use_native"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What an op ran on, and why."""

    op: str
    implementation: str
    reason: str


_choices: dict[str, Choice] = {}
_answers: dict[tuple[object, ...], Choice] = {}


class _Watchers(threading.local):
    """Who looks at the ops of this thread: what another thread runs is none of theirs."""

    def __init__(self) -> None:
        self.counters: list[dict[str, int]] = []
        self.references: list[dict[str, Choice]] = []


_watchers = _Watchers()


def choices() -> Mapping[str, Choice]:
    """The last choice of every op that has run in this process."""
    return MappingProxyType(_choices)


@contextmanager
def count_launches() -> Iterator[dict[str, int]]:
    """Counts the ops called on this thread inside the block, by name; replays of a program are not calls."""
    counter: dict[str, int] = {}
    _watchers.counters.append(counter)
    try:
        yield counter
    finally:
        _watchers.counters.pop()


@contextmanager
def note_references() -> Iterator[Mapping[str, Choice]]:
    """Notes which ops ran their reference on this thread inside the block, by name, and why."""
    noted: dict[str, Choice] = {}
    _watchers.references.append(noted)
    try:
        yield noted
    finally:
        _watchers.references.pop()


def use_native(op: str, activation: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)) -> bool:
    """Whether the native implementation of an op runs on this tensor.

    Args:
        op: Name of the op.
        activation: The tensor that stands for the call: it must be on the CPU and of one of `dtypes`.
        dtypes: What the native implementation takes.

    Raises:
        DeviceError: ``OCRQUANT_KERNELS=native`` and the native implementation does not apply.
    """
    for counter in _watchers.counters:
        counter[op] = counter.get(op, 0) + 1
    # Asked at every call, so the answer to the same question is kept.
    question = (op, activation.device, activation.dtype, env.kernels(), extension_state(), dtypes)
    choice = _answers.get(question)
    if choice is None:
        choice = _answers[question] = _choose(op, activation, dtypes)
    _choices[op] = choice
    if choice.implementation == "native":
        return True
    for noted in _watchers.references:
        noted[op] = choice
    return False


def _choose(op: str, activation: Tensor, dtypes: tuple[torch.dtype, ...]) -> Choice:
    obstacle = obstacle_to_native(activation.device, activation.dtype, dtypes)
    if obstacle and env.kernels() == "native":
        raise DeviceError(
            f"op {op} with OCRQUANT_KERNELS=native",
            expected=f"the extension, and {' or '.join(map(str, dtypes))} on a CPU",
            given=obstacle,
            fix="unset the variable to let the reference run",
        )
    return Choice(op, "reference" if obstacle else "native", obstacle or "CPU and dtype supported")


def obstacle_to_native(device: torch.device, dtype: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> str:
    """Why a native implementation that takes `dtypes` does not run; empty where it does."""
    if env.kernels() == "reference":
        return "OCRQUANT_KERNELS=reference"
    if device.type != "cpu":
        return f"device {device}"
    if dtype not in dtypes:
        return f"dtype {dtype}"
    return "" if extension() is not None else missing_reason()
