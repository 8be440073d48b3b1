"""What every producer of an operand must do, as checks that each op's tests run on their own op.

A producer here is a function of its named inputs and the operand to write; inputs whose first dimension is
the rows are cut and strided by the checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor

from ocrquant.kernels.emit import emit
from ocrquant.kernels.extension import extension, missing_reason
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.program import capture

BF16 = torch.bfloat16
CPU = torch.device("cpu")
ENCODE_SCALE = torch.tensor([37.0])
FORMS = ("plain", "fp8", "fp8_scale", "nvfp4", "nvfp4_scale")
# A float32 step moves about one bf16 rounding in 2**16, and sums differ by a few such steps.
MOST_FLIPS = 1e-4

Inputs = dict[str, Tensor]

needs_native = pytest.mark.skipif(extension() is None, reason=missing_reason() or "built")
ISAS = ["plain", "avx2", "avx512"]
LEVELS = [*ISAS, "amx"]
"""What a processor may offer; the ops that this module tests have no code of their own for the last."""


@dataclass(frozen=True)
class Producer:
    """An op under test; `inputs(rows, width, generator)` makes its tensors, `shared` have no rows."""

    run: Callable[[Inputs, Operand], None]
    reference: Callable[[Inputs, Operand], None]
    inputs: Callable[[int, int, torch.Generator], Inputs]
    shared: tuple[str, ...] = ()
    unit: int = 1

    @property
    def step(self) -> int:
        """Widths in whole units that NVFP4 can hold."""
        return math.lcm(self.unit, 16)

    def make(self, rows: int, width: int, seed: int = 0) -> Inputs:
        return self.inputs(rows, width, torch.Generator().manual_seed(seed))

    def rows_of(self, inputs: Inputs, part: slice) -> Inputs:
        return {n: t if n in self.shared else t[part] for n, t in inputs.items()}

    def produced(self, inputs: Inputs, width: int, operand: Operand | None = None) -> Operand:
        rows = next(len(t) for n, t in inputs.items() if n not in self.shared)
        out = allocate(rows, width) if operand is None else operand
        self.run({n: t.clone() if t.is_contiguous() else t for n, t in inputs.items()}, out)
        return out


def randn(shape: tuple[int, ...], generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """Normal bf16 numbers of very different sizes by row."""
    x = torch.randn(shape, generator=generator) * scale
    sizes = 2.0 ** torch.randint(-3, 3, (shape[0], *[1] * (len(shape) - 1)), generator=generator)
    return (x * sizes).to(BF16)


def allocate(rows: int, width: int, *, plain: bool = True, fp8: bool = True, nvfp4: bool = True) -> Operand:
    """An operand full of a pattern, so that what is not written shows."""
    scale = ENCODE_SCALE if nvfp4 and width % 16 == 0 else None
    out = OperandSpec(plain=plain, fp8=fp8, nvfp4_encode_scale=scale).allocate(rows, width, BF16, CPU)
    for name in FORMS:
        tensor = getattr(out, name)
        if tensor is not None:
            tensor.view(torch.uint8).fill_(0xA5) if tensor.numel() else None
    return out


def raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def assert_same(
    one: Operand, other: Operand, rows: slice = slice(None), names: tuple[str, ...] = FORMS
) -> None:
    """Bit equality of all forms that both have."""
    compared = 0
    for name in names:
        a, b = getattr(one, name), getattr(other, name)
        if a is not None and b is not None:
            assert torch.equal(raw(a), raw(b[rows])), name
            compared += 1
    assert compared


def assert_emitted(out: Operand) -> None:
    """The quantized forms are those of the plain one, bit for bit."""
    assert out.plain is not None
    expected = allocate(*out.plain.shape)
    emit(out.plain, expected)
    assert_same(out, expected)


def bf16_steps(a: Tensor, b: Tensor) -> Tensor:
    """Number of bf16 steps between two tensors; 0 where both are NaN."""

    def place(x: Tensor) -> Tensor:
        bits = x.contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    steps = (place(a) - place(b)).abs()
    return torch.where(a.isnan() & b.isnan(), 0, steps)


def assert_close(a: Tensor, b: Tensor, most_steps: int) -> None:
    """At most one element in ten thousand differs, and by no more than a step or two of bf16."""
    steps = bf16_steps(a, b)
    assert int(steps.max()) <= most_steps if steps.numel() else True
    assert int((steps > 0).sum()) <= max(1, MOST_FLIPS * steps.numel())


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    native = extension()
    assert native is not None
    if LEVELS.index(name) > LEVELS.index(native.best_isa()):
        pytest.skip(f"this processor has no {name}")
    before = native.isa()
    native.force_isa(name)
    try:
        yield
    finally:
        native.force_isa(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    native = extension()
    assert native is not None
    before = native.num_threads()
    native.set_num_threads(count)
    try:
        yield
    finally:
        native.set_num_threads(before)


def follows_its_reference(p: Producer) -> None:
    for rows, units in ((1, 1), (3, 5), (17, 2), (64, 64), (2, 192)):
        width = units * p.step
        inputs = p.make(rows, width, seed=rows)
        out, expected = p.produced(inputs, width), allocate(rows, width)
        p.reference({n: t.clone() for n, t in inputs.items()}, expected)
        assert out.plain is not None
        assert expected.plain is not None
        assert_close(out.plain, expected.plain, most_steps=2)
        assert_emitted(out)


def takes_ragged_widths(p: Producer) -> None:
    for units in (1, 2, 3, 7, 9, 31, 33):
        width = units * p.unit
        inputs = p.make(4, width, seed=units)
        out, expected = p.produced(inputs, width), allocate(4, width)
        p.reference({n: t.clone() for n, t in inputs.items()}, expected)
        assert out.plain is not None
        assert expected.plain is not None
        assert_close(out.plain, expected.plain, most_steps=2)
        assert_emitted(out)


def gives_a_row_the_same_bytes_in_any_batch(p: Producer) -> None:
    width = 6 * p.step
    inputs = p.make(37, width)
    together = p.produced(inputs, width)
    for part in (slice(0, 1), slice(36, 37), slice(3, 20)):
        assert_same(p.produced(p.rows_of(inputs, part), width), together, part)


def gives_the_same_bytes_on_any_number_of_threads(p: Producer) -> None:
    width = 12288
    for rows in (1, 40):
        inputs = p.make(rows, width)
        with threads(1):
            alone = p.produced(inputs, width)
        for forms in ({}, {"plain": False}, {"fp8": False}):
            operand = allocate(rows, width, **forms)
            with threads(2):
                assert_same(p.produced(inputs, width, operand), alone)


def gives_the_same_bytes_on_every_instruction_set(p: Producer) -> None:
    width = 3 * p.step
    inputs = p.make(50, width)
    with instruction_set("plain"):
        plain = p.produced(inputs, width)
    native = extension()
    assert native is not None
    for name in ISAS[1 : LEVELS.index(native.best_isa()) + 1]:
        with instruction_set(name):
            assert_same(p.produced(inputs, width), plain)


def writes_each_form_as_if_it_were_alone(p: Producer) -> None:
    width = 4 * p.step
    inputs = p.make(5, width)
    whole = p.produced(inputs, width)
    for form in ("plain", "fp8", "nvfp4"):
        only = allocate(5, width, **{name: name == form for name in ("plain", "fp8", "nvfp4")})
        assert sum(getattr(only, f.name) is not None for f in fields(only)) < len(fields(only))
        assert_same(p.produced(inputs, width, only), whole)


def takes_no_rows(p: Producer) -> None:
    width = p.step
    out = p.produced(p.make(0, width), width)
    assert out.plain is not None
    assert out.plain.shape == (0, width)


def takes_strided_rows(p: Producer) -> None:
    width = 3 * p.step
    inputs = p.make(6, width)
    dense = p.produced(inputs, width)
    wider = {}
    for name, tensor in inputs.items():
        if name in p.shared:
            wider[name] = tensor
            continue
        shape = [
            len(tensor),
            tensor.shape[1] + 1 if tensor.ndim > 2 else tensor.shape[1] + 7,
            *tensor.shape[2:],
        ]
        view = torch.full(shape, torch.nan, dtype=BF16)[:, : tensor.shape[1]]
        view.copy_(tensor)
        wider[name] = view
    assert_same(p.produced(wider, width), dense)


def keeps_a_nan_in_its_row(p: Producer) -> None:
    width = 4 * p.step
    inputs = p.make(5, width)
    clean = p.produced(inputs, width)
    for name, tensor in inputs.items():
        if name not in p.shared:
            tensor[2] = torch.nan
    dirty = p.produced(inputs, width)
    assert dirty.plain is not None
    assert dirty.fp8 is not None
    assert bool(dirty.plain[2].isnan().all())
    assert set(dirty.fp8[2].tolist()) <= {0x7F, 0xFF}
    for rows in (slice(0, 2), slice(3, 5)):
        for name in FORMS:
            assert torch.equal(raw(getattr(dirty, name)[rows]), raw(getattr(clean, name)[rows])), name


def follows_its_inputs_when_replayed(p: Producer) -> None:
    width = 2 * p.step
    inputs, out = p.make(3, width), allocate(3, width)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    with capture(inputs, out) as program:
        p.run(inputs, out)
    assert program.num_launches == 1
    program.run()
    assert_same(out, p.produced(before, width))
    fresh = p.make(3, width, seed=1)
    for name, tensor in inputs.items():
        tensor.copy_(fresh[name])
    program.run()
    assert_same(out, p.produced(fresh, width))


CHECKS = (
    follows_its_reference,
    takes_ragged_widths,
    gives_a_row_the_same_bytes_in_any_batch,
    gives_the_same_bytes_on_any_number_of_threads,
    gives_the_same_bytes_on_every_instruction_set,
    writes_each_form_as_if_it_were_alone,
    takes_no_rows,
    takes_strided_rows,
    keeps_a_nan_in_its_row,
    follows_its_inputs_when_replayed,
)
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
