"""Times of every product that a plan can choose, for `ocrquant.cost.CostTable`: formats beside each other.

A step passes through all weights of a model, so that between two uses of one weight the whole model goes
through the caches. A pass here goes through copies of one weight that together are as large as the model in
that format, and is divided by their number. Rows of FP8 and NVFP4 are quantized inside the time; the runtime
does that inside the op before, a little cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field

from ocrquant.adapters import Group, model_folder, read_model_map
from ocrquant.bench.machine import READ_BYTES, ReadProbe, describe_machine
from ocrquant.bench.report import BenchSettings, Report
from ocrquant.bench.threads import use_threads
from ocrquant.bench.timing import interleave, median_interval
from ocrquant.bench.weights import INPUT_AMAX, quantize_weight, random_weight
from ocrquant.cost import CostEntry, CostTable, products
from ocrquant.cost.table import BENCHMARK
from ocrquant.errors import DeviceError
from ocrquant.formats import FORMATS, Precision, nvfp4
from ocrquant.kernels.extension import extension, missing_reason
from ocrquant.kernels.linear import linear, pack
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.program import capture
from ocrquant.kernels.quantize import quantize

__all__ = ["Settings", "run"]

_SEED = 0
_MICROSECONDS = 1e6
_WIDE = 1.5

Positive = Annotated[int, Field(ge=1)]
Shape = tuple[int, int]


class Settings(BenchSettings):
    """What is measured.

    Attributes:
        model: Folder of the unquantized model whose products are needed, or ``pico``.
        rows: Numbers of rows: requests times the window of a step. Between two of them times are
            interpolated, beyond them they are not known.
        threads: Threads of torch and of the native kernels.
        probe_bytes: Buffer that the bandwidth is measured on, and the most bytes of a pass.
    """

    model: str = "pico"
    rows: tuple[Positive, ...] = (1, 8)
    threads: Positive = 1
    probe_bytes: Positive = READ_BYTES


def run(settings: Settings, repeats: int) -> Report:
    """Measures every distinct product of the model's groups.

    Raises:
        DeviceError: The extension is missing: the plain operations say nothing about a machine.
        ModelError: The model cannot be read.
    """
    if extension() is None:
        fix = "reinstall the package with a C++ compiler at hand"
        raise DeviceError(f"benchmark {BENCHMARK}", expected="the extension", given=missing_reason(), fix=fix)
    groups = read_model_map(model_folder(settings.model)).groups
    sizes = {
        precision: sum(group.weight_bytes(precision) for group in groups if _fits(group, precision))
        for precision in FORMATS
    }
    with use_threads(settings.threads):
        probe = ReadProbe(settings.probe_bytes)
        read = interleave({"read": probe}, repeats=repeats)["read"]
        entries = [
            entry
            for shape in _shapes(groups)
            for rows in settings.rows
            for entry in _measure(shape, rows, sizes, settings.probe_bytes, repeats)
        ]
        machine = describe_machine()
    report = Report(BENCHMARK, settings, repeats)
    table = CostTable(
        machine=f"{machine['processor']}, {machine['instruction_set']}, {settings.threads} threads",
        date=str(machine["date"]),
        read_bytes_per_s=median_interval(read).inverse(probe.num_bytes).median,
        products=entries,
    )
    report.results = table.model_dump(mode="json")
    report.notes = [
        "a weight is read from where a step finds it: copies of it as large as the model go by in a pass",
        "use with assign.target.table; assign.target.batch times window must lie between the rows measured",
    ]
    report.notes += _unsteady(entries)
    return report


def _unsteady(entries: Sequence[CostEntry]) -> list[str]:
    """A warning where the interval of a median is wide: something else was running."""
    wide = sum(entry.high_us > _WIDE * entry.low_us for entry in entries)
    if not wide:
        return []
    return [f"{wide} of {len(entries)} times vary by more than half: measure again on a quiet machine"]


def _fits(group: Group, precision: Precision) -> bool:
    return group.reason_against(precision) is None


def _shapes(groups: Sequence[Group]) -> list[Shape]:
    """Every product once, in the order of the model."""
    shapes = (
        shape
        for group in groups
        for shape in products([(linear.out_features, linear.in_features) for linear in group.linears])
    )
    return list(dict.fromkeys(shapes))


def _measure(
    shape: Shape, rows: int, sizes: dict[Precision, int], most_bytes: int, repeats: int
) -> list[CostEntry]:
    """One product in every format that its width allows, interleaved."""
    out_features, in_features = shape
    arms: dict[str, Callable[[], object]] = {}
    copies = {}
    for precision, form in FORMATS.items():
        if form.fits(in_features):
            size = form.weight_bytes(out_features, in_features)
            copies[precision] = max(1, round(min(sizes[precision], most_bytes) / size))
            arms[precision] = _arm(shape, rows, precision, copies[precision])
    seconds = interleave(arms, repeats=repeats)
    entries = []
    for precision, count in copies.items():
        us = median_interval(seconds[precision]).scaled(_MICROSECONDS / count)
        entries.append(
            CostEntry(
                out_features=out_features,
                in_features=in_features,
                precision=precision,
                rows=rows,
                us=us.median,
                low_us=us.low,
                high_us=us.high,
                repeats=us.repeats,
            )
        )
    return entries


def _arm(shape: Shape, rows: int, precision: Precision, copies: int) -> Callable[[], object]:
    """A captured program of the product with every copy of its weight, as the engine runs it."""
    generator = torch.Generator().manual_seed(_SEED)
    plain = random_weight(shape, generator)
    x = torch.randn(rows, shape[1], generator=generator).bfloat16()
    scale = nvfp4.global_encode_scale(torch.tensor([INPUT_AMAX]))
    stored: Any = plain if precision is Precision.BF16 else quantize_weight(plain, precision)
    out = torch.empty(rows, shape[0], dtype=x.dtype)
    with capture() as program:
        for _ in range(copies):
            weight = pack(stored)
            operand = Operand(plain=x)
            if precision is not Precision.BF16:
                spec = OperandSpec(
                    plain=False,
                    fp8=precision is Precision.FP8,
                    nvfp4_encode_scale=scale if precision is Precision.NVFP4 else None,
                )
                operand = spec.allocate(rows, shape[1], x.dtype, x.device)
                quantize(x, operand)
            linear(operand, weight, out)
            program.keep(x, operand, weight, out)
    return program.run
