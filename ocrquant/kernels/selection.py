"""Which implementation of an op runs: the native one, one in Triton or CUDA, or the reference, and why.

The choice depends on the device, the dtype of the activations and the forms that are written, never on sizes
or contents. The variable ``OCRQUANT_KERNELS`` forces it. Knows names of ops; knows no op.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor

from ocrquant import env
from ocrquant.errors import DeviceError
from ocrquant.kernels.extension import extension, extension_state, missing_reason

__all__ = [
    "CUDA_OPS",
    "TRITON_OPS",
    "Choice",
    "choices",
    "count_launches",
    "implementation",
    "note_choice",
    "note_references",
    "obstacle_to_native",
    "obstacle_to_triton",
    "use_native",
    "without_triton",
]

TRITON_OPS: Mapping[str, str] = MappingProxyType(
    {
        name: f"ocrquant.kernels.{folder or name}.triton"
        for name, folder in {
            "quantize": "",
            "silu_mul": "",
            "sigmoid_mul": "",
            "rms_norm": "",
            "gated_rms_norm": "",
            "attention_inputs": "",
            "paged_attention": "",
            "causal_conv": "",
            "gated_delta_rows": "",
            "gated_delta_window": "",
            "record_window": "gated_delta_redo",
            "redo_window": "gated_delta_redo",
            "replay_rows": "replay",
            "replay_fold": "replay",
            "move_cursors": "replay",
            "commit_state": "window_commit",
            "commit_tail": "window_commit",
            "sample": "",
            "selector_walk": "",
            "local_convolution": "",
        }.items()
    }
)
"""Ops with kernels in Triton, and the module of each one's ``NAME_triton``, loaded when it is first used."""

CUDA_OPS = frozenset({"quantize", "silu_mul", "gated_rms_norm", "replay_rows", "move_cursors"})
"""Ops with kernels in CUDA C++, functions of `ocrquant.kernels.cuda`.

They run where ``OCRQUANT_KERNELS=cuda`` asks for them: compiling them takes a minute, which nobody shall meet
unasked in the middle of a request."""


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
        self.has_triton = True


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


@contextmanager
def without_triton() -> Iterator[None]:
    """Ops of this thread run inside the block as if they had no kernel in Triton: what to compare with."""
    before, _watchers.has_triton = _watchers.has_triton, False
    try:
        yield
    finally:
        _watchers.has_triton = before


def note_choice(op: str, implementation: str, reason: str) -> None:
    """Counts a call that was decided elsewhere, and keeps what it ran on."""
    for counter in _watchers.counters:
        counter[op] = counter.get(op, 0) + 1
    _choices[op] = Choice(op, implementation, reason)


def use_native(op: str, activation: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)) -> bool:
    """Whether the native implementation of an op runs on this tensor.

    Args:
        op: Name of the op.
        activation: The tensor that stands for the call: it must be on the CPU and of one of `dtypes`.
        dtypes: What the native implementation takes.

    Raises:
        DeviceError: ``OCRQUANT_KERNELS`` names an implementation that does not apply.
    """
    return _chosen(op, activation, dtypes, True, False, env.kernels()).implementation == "native"


def implementation(
    op: str,
    activation: Tensor,
    native: Callable[..., None],
    reference: Callable[..., None],
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,),
    *,
    is_for_gpu: bool = False,
) -> Callable[..., None]:
    """The implementation of an op that runs on this tensor.

    Args:
        op: Name of the op; where it is one of `TRITON_OPS` or `CUDA_OPS`, that implementation may run too.
        activation: The tensor that stands for the call.
        native: Runs on a CPU.
        reference: Runs anywhere.
        dtypes: What the compiled implementations take.
        is_for_gpu: Whether a form is written that the native implementation lacks.

    Raises:
        DeviceError: ``OCRQUANT_KERNELS`` names an implementation that does not apply.
    """
    asked = env.kernels()
    if asked == "cuda" and op in CUDA_OPS:
        return _cuda(op, activation, dtypes)
    kind = _chosen(op, activation, dtypes, not is_for_gpu, op in TRITON_OPS, asked).implementation
    if kind == "triton":
        return cast(Callable[..., None], getattr(import_module(TRITON_OPS[op]), f"{op}_triton"))
    return native if kind == "native" else reference


def _cuda(op: str, activation: Tensor, dtypes: tuple[torch.dtype, ...]) -> Callable[..., None]:
    """On a CPU the kernels run emulated, for tests, and no program of native calls can record them."""
    module = import_module("ocrquant.kernels.cuda")
    obstacle = "" if activation.dtype in dtypes else f"dtype {activation.dtype}"
    obstacle = obstacle or module.missing_reason(activation.device)
    if obstacle:
        raise DeviceError(
            f"op {op} with OCRQUANT_KERNELS=cuda",
            expected=f"the compiled kernels, and {' or '.join(map(str, dtypes))}",
            given=obstacle,
            fix="unset the variable to let another implementation run",
        )
    note_choice(op, "cuda", f"OCRQUANT_KERNELS=cuda, {module.architecture(activation.device)}")
    if activation.device.type == "cpu":
        for noted in _watchers.references:
            noted[op] = _choices[op]
    return cast(Callable[..., None], getattr(module, op))


def _chosen(
    op: str,
    activation: Tensor,
    dtypes: tuple[torch.dtype, ...],
    has_native: bool,
    has_triton: bool,
    asked: str,
) -> Choice:
    """`asked`: what ``OCRQUANT_KERNELS`` says; reading it takes half of the time that this does."""
    for counter in _watchers.counters:
        counter[op] = counter.get(op, 0) + 1
    has_triton = has_triton and _watchers.has_triton
    # Asked at every call, so the answer to the same question is kept.
    question = (
        op,
        activation.device,
        activation.dtype,
        asked,
        extension_state(),
        dtypes,
        has_native,
        has_triton,
    )
    choice = _answers.get(question)
    if choice is None:
        choice = _answers[question] = _choose(op, activation, dtypes, has_native, has_triton)
    _choices[op] = choice
    if choice.implementation == "reference":
        for noted in _watchers.references:
            noted[op] = choice
    return choice


def _choose(
    op: str, activation: Tensor, dtypes: tuple[torch.dtype, ...], has_native: bool, has_triton: bool
) -> Choice:
    device, dtype = activation.device, activation.dtype
    obstacles = {"native": obstacle_to_native(device, dtype, dtypes)}
    if not obstacles["native"] and not has_native:
        obstacles["native"] = "a form of its operand that only GPUs read"
    if has_triton:
        obstacles["triton"] = obstacle_to_triton(device, dtype, dtypes)
    for kind, obstacle in obstacles.items():
        if not obstacle:
            return Choice(op, kind, f"{'CPU' if kind == 'native' else device} and dtype supported")
    # What says most of a device: its own implementation.
    kind = "triton" if has_triton and device.type == "cuda" else "native"
    forced = env.kernels() if env.kernels() in obstacles else ""
    if forced:
        needs = {"native": "the extension, and {} on a CPU", "triton": "Triton, and {} on a GPU"}[forced]
        raise DeviceError(
            f"op {op} with OCRQUANT_KERNELS={forced}",
            expected=needs.format(" or ".join(map(str, dtypes))),
            given=obstacles[forced],
            fix="unset the variable to let the reference run",
        )
    return Choice(op, "reference", obstacles[kind])


def obstacle_to_native(device: torch.device, dtype: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> str:
    """Why a native implementation that takes `dtypes` does not run; empty where it does."""
    if env.kernels() in ("reference", "triton"):
        return f"OCRQUANT_KERNELS={env.kernels()}"
    if device.type != "cpu":
        return f"device {device}"
    if dtype not in dtypes:
        return f"dtype {dtype}"
    return "" if extension() is not None else missing_reason()


def obstacle_to_triton(device: torch.device, dtype: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> str:
    """Why kernels in Triton that take `dtypes` do not run; empty where they do.

    On a CPU they run in Triton's interpreter (``TRITON_INTERPRET=1``), for tests, and only where
    ``OCRQUANT_KERNELS=triton`` asks for them.
    """
    if env.kernels() in ("reference", "native"):
        return f"OCRQUANT_KERNELS={env.kernels()}"
    is_interpreted = env.kernels() == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not is_interpreted:
        return f"device {device}"
    if dtype not in dtypes:
        return f"dtype {dtype}"
    return "" if _has_triton() else "Triton is not installed"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
