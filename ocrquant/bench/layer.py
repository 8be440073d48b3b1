"""Linears of one decoder layer of Qwen3.5-9B shape: torch in bf16 against packed bf16, FP8 and NVFP4 weights.

One pass multiplies the rows by every linear of the layer, one after another. Before every pass of every arm
the buffer that the bandwidth is measured on is read, so that a pass reads its weights from memory whatever
ran before: in NVFP4 they are smaller than the cache of a large server. The native arms are captured programs,
as the engine runs them; those of FP8 and NVFP4 also quantize their rows, which the engine does inside the op
before.
The ceiling of a pass at one row is the time to read its weights at the bandwidth measured between the passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ocrquant.bench.machine import READ_BYTES, ReadProbe
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.threads import use_threads
from ocrquant.bench.timing import interleave, median_interval, ratio
from ocrquant.bench.weights import INPUT_AMAX, quantize_weight, random_weight
from ocrquant.errors import DeviceError
from ocrquant.formats import Precision, nvfp4
from ocrquant.kernels.extension import extension, missing_reason
from ocrquant.kernels.linear import PackedWeight, linear, pack
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.program import capture
from ocrquant.kernels.quantize import quantize

__all__ = ["Settings", "layer_linears", "run"]

_SEED = 0
_PRECISIONS = {"bf16": Precision.BF16, "fp8": Precision.FP8, "nvfp4": Precision.NVFP4}
_SPEEDUPS = {("nvfp4", 1): 3.0, ("fp8", 1): 1.7, ("nvfp4", 8): 2.0, ("fp8", 8): 1.3}
_BANDWIDTH_SHARE = 0.7

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """Sizes; the defaults are those of Qwen3.5-9B.

    Attributes:
        hidden: Width of the residual stream.
        intermediate: Inner width of the MLP.
        heads: Query heads of 256 of the attention layer.
        kv_heads: Its heads of keys and values.
        key_heads: Key heads of 128 of the Gated DeltaNet layer.
        value_heads: Its value heads.
        kinds: Layers to measure: ``gdn`` and ``attention``.
        rows: Rows of a pass.
        threads: Threads of torch and of the native kernels.
        probe_bytes: Buffer that the bandwidth is measured on, and that is read before every pass.
    """

    hidden: Positive = 4096
    intermediate: Positive = 12288
    heads: Positive = 16
    kv_heads: Positive = 4
    key_heads: Positive = 16
    value_heads: Positive = 32
    kinds: tuple[str, ...] = ("gdn", "attention")
    rows: tuple[Positive, ...] = (1, 8)
    threads: tuple[Positive, ...] = (1, 2)
    probe_bytes: Positive = READ_BYTES


def layer_linears(settings: Settings, kind: str) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each product of a layer, merged as the runtime merges them.

    The two small projections of Gated DeltaNet (b and a) stay in bf16 in every plan and are left out.
    """
    hidden, inner = settings.hidden, settings.intermediate
    mlp = {"gate_up": (2 * inner, hidden), "down": (hidden, inner)}
    if kind == "gdn":
        keys, values = 128 * settings.key_heads, 128 * settings.value_heads
        return {"qkvz": (2 * keys + 2 * values, hidden), "out": (hidden, values), **mlp}
    queries, keys = 256 * settings.heads, 256 * settings.kv_heads
    return {"qkv": (2 * queries + 2 * keys, hidden), "o": (hidden, queries), **mlp}


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """One product in all precisions.

    Attributes:
        plain: bf16 [out, in].
        wide: The same in float32.
        packed: By name of the precision.
        encode_scale: float32 [1], of NVFP4 rows.
    """

    plain: Tensor
    wide: Tensor
    packed: dict[str, PackedWeight]
    encode_scale: Tensor


def make_linear(shape: tuple[int, int], generator: torch.Generator) -> _Linear:
    """Random weights of a size that trained ones have, packed in every precision."""
    plain = random_weight(shape, generator)
    packed = {
        name: pack(plain if precision is Precision.BF16 else quantize_weight(plain, precision))
        for name, precision in _PRECISIONS.items()
    }
    return _Linear(plain, plain.float(), packed, nvfp4.global_encode_scale(torch.tensor([INPUT_AMAX])))


def run(settings: Settings, repeats: int) -> Report:
    """Measures every layer at every number of rows and threads."""
    if extension() is None:
        fix = "reinstall the package with a C++ compiler at hand"
        raise DeviceError("benchmark layer", expected="the extension", given=missing_reason(), fix=fix)
    report = Report("layer", settings, repeats)
    report.notes = [
        "speed-up: seconds of torch bf16 F.linear by seconds of the arm within the same repeat",
        "torch fp32 reads twice the bytes; where a processor lacks bf16 arithmetic it is the faster baseline",
        "fp8 and nvfp4 quantize their rows inside the measured time; *_plain read bf16 rows as they are",
        "share_of_bandwidth: packed bytes by seconds, over the read bandwidth of the same repeat",
    ]
    probe = ReadProbe(settings.probe_bytes)
    for kind in settings.kinds:
        generator = torch.Generator().manual_seed(_SEED)
        linears = [make_linear(shape, generator) for shape in layer_linears(settings, kind).values()]
        for threads in settings.threads:
            for rows in settings.rows:
                found, goals = _measure(linears, probe, rows, threads, repeats, f"{kind}, {threads} threads")
                report.results[f"{kind}, {rows} rows, {threads} threads"] = found
                report.goals += goals
    return report


def _measure(
    linears: list[_Linear], probe: ReadProbe, rows: int, threads: int, repeats: int, where: str
) -> tuple[dict[str, object], list[Goal]]:
    inputs = [torch.randn(rows, one.plain.shape[1]).bfloat16() for one in linears]
    arms: dict[str, Callable[[], object]] = {
        "read": probe,
        "torch": _torch_arm([one.plain for one in linears], inputs),
        "torch_fp32": _torch_arm([one.wide for one in linears], [x.float() for x in inputs]),
    }
    for name in _PRECISIONS:
        arms[name] = _native_arm(linears, inputs, name, is_plain=name == "bf16")
        if name != "bf16":
            arms[f"{name}_plain"] = _native_arm(linears, inputs, name, is_plain=True)
    with use_threads(threads):
        seconds = interleave(arms, repeats=repeats, before=probe)
    found: dict[str, object] = {
        "read_bytes_per_s": median_interval(seconds["read"]).inverse(probe.num_bytes),
        "torch": {"seconds": median_interval(seconds["torch"])},
        "torch_fp32": {"seconds": median_interval(seconds["torch_fp32"])},
    }
    goals = []
    for name in arms:
        precision = name.removesuffix("_plain")
        if precision not in _PRECISIONS:
            continue
        num_bytes = sum(one.packed[precision].nbytes for one in linears)
        share = [
            (num_bytes / arm) / (probe.num_bytes / read)
            for arm, read in zip(seconds[name], seconds["read"], strict=True)
        ]
        speedup = ratio(seconds["torch"], seconds[name])
        found[name] = {
            "seconds": median_interval(seconds[name]),
            "packed_bytes": num_bytes,
            "bytes_per_s": median_interval(seconds[name]).inverse(num_bytes),
            "share_of_bandwidth": median_interval(share),
            "speedup": speedup,
            "speedup_over_torch_fp32": ratio(seconds["torch_fp32"], seconds[name]),
        }
        if (name, rows) in _SPEEDUPS:
            label = f"{where}, {rows} rows: {name} against torch bf16"
            goals.append(Goal(label, speedup, _SPEEDUPS[name, rows]))
        if (name, rows) in (("nvfp4", 1), ("fp8", 1)):
            label = f"{where}, {rows} rows: {name} bytes/s over read bandwidth"
            goals.append(Goal(label, median_interval(share), _BANDWIDTH_SHARE))
    return found, goals


def _torch_arm(weights: list[Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    def work() -> None:
        with torch.inference_mode():
            for weight, x in zip(weights, inputs, strict=True):
                F.linear(x, weight)

    return work


def _native_arm(
    linears: list[_Linear], inputs: list[Tensor], name: str, *, is_plain: bool
) -> Callable[[], object]:
    with capture() as program:
        for one, x in zip(linears, inputs, strict=True):
            operand = Operand(plain=x)
            if not is_plain:
                scale = one.encode_scale if name == "nvfp4" else None
                spec = OperandSpec(plain=False, fp8=name == "fp8", nvfp4_encode_scale=scale)
                operand = spec.allocate(len(x), x.shape[1], x.dtype, x.device)
                quantize(x, operand)
            out = torch.empty(len(x), one.plain.shape[0], dtype=x.dtype)
            linear(operand, one.packed[name], out)
            program.keep(x, operand, one, out)
    return program.run
