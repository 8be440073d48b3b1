"""Recurrent states while drafts are verified: a state for each token against rows done again and ReplaySSM.

One step verifies a window for every request and commits what was accepted, which is drawn at random, the same
for both. Bytes are those of states and records, counted from what each implementation reads and writes; rows,
convolution tails and outputs are the same for both and left out. Also the drift of states over a long answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from ocrquant.bench.machine import READ_BYTES, ReadProbe
from ocrquant.bench.report import BenchSettings, Report
from ocrquant.bench.threads import use_threads
from ocrquant.bench.timing import Estimate, interleave, median_interval, ratio
from ocrquant.engine.state import NativePool, ReplayPool, SnapshotPool, StatePool
from ocrquant.engine.state.drift import measure_drift
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import Classes, DeltaInputs, Rows, StateMetadata

__all__ = ["Settings", "run"]

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """Sizes; those of a layer of Qwen3.5-0.8B by default.

    Attributes:
        requests: Numbers of requests in a step.
        window: Rows of each window.
        steps: Steps of a repeat, so that folds of records are met as often as in a long run.
        key_heads: Heads of queries and keys.
        value_heads: Heads of the state.
        head_dim: Width of all heads.
        drift_tokens: Length of the answer whose drift is measured; 0 leaves it out.
        threads: Of the native kernels; None for what they take by themselves.
        probe_bytes: Buffer that the bandwidth is measured on.
    """

    requests: tuple[Positive, ...] = (1, 8, 32)
    window: Annotated[int, Field(ge=2)] = 16
    steps: Positive = 8
    key_heads: Positive = 16
    value_heads: Positive = 16
    head_dim: Positive = 128
    drift_tokens: Annotated[int, Field(ge=0)] = 4096
    threads: Positive | None = None
    probe_bytes: Positive = READ_BYTES


def run(settings: Settings, repeats: int) -> Report:
    """Measures both at each number of requests, then the drift."""
    report, probe = Report("state", settings, repeats), ReadProbe(settings.probe_bytes)
    with use_threads(settings.threads):
        for count in settings.requests:
            report.results[f"{count} requests"] = _measure(settings, count, probe, repeats)
    if settings.drift_tokens:
        report.results["drift"] = measure_drift(settings.drift_tokens, window=settings.window)
    report.notes = [
        f"one layer, windows of {settings.window} rows, 1 to {settings.window} of them accepted at random; "
        "seconds and bytes are those of a step: verify and commit",
        "drift: one layer, one request, against float64 over the same bf16 rows",
    ]
    return report


_Kind: TypeAlias = type[NativePool] | type[ReplayPool] | type[SnapshotPool]
_POOLS: Mapping[str, _Kind] = {"snapshot": SnapshotPool, "native": NativePool, "replay": ReplayPool}


@dataclass(slots=True)
class _Arm:
    """One way of keeping states; goes on with the same requests from call to call.

    Attributes:
        pool: The states.
        step: Verifies one window of every request.
        accepted: i32 [steps, N], what each step's windows keep.
        num_bytes: Of states and records moved so far.
    """

    pool: StatePool
    step: Callable[[], None]
    accepted: Tensor
    num_bytes: int = 0

    def __call__(self) -> None:
        slots = torch.arange(self.accepted.shape[1], dtype=torch.int32)
        for accepted in self.accepted:
            self.num_bytes += _moved(self.pool, accepted)
            self.pool.begin_window(slots, self.pool.window)
            self.step()
            self.pool.commit(slots, accepted)


def _measure(settings: Settings, count: int, probe: ReadProbe, repeats: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(count)
    accepted = torch.randint(1, settings.window + 1, (settings.steps, count), generator=generator).int()
    arms = {name: _make_arm(settings, kind, accepted) for name, kind in _POOLS.items()}
    seconds = interleave({"read": probe, **arms}, repeats=repeats, warmup=1)
    calls = repeats + 1
    found: dict[str, object] = {
        "read_bytes_per_s": median_interval(seconds["read"]).inverse(probe.num_bytes),
        "snapshot over native": ratio(seconds["snapshot"], seconds["native"]),
        "snapshot over replay": ratio(seconds["snapshot"], seconds["replay"]),
    }
    for name, arm in arms.items():
        step_bytes = arm.num_bytes / (calls * settings.steps)
        per_step: Estimate = median_interval(seconds[name]).scaled(1.0 / settings.steps)
        found[name] = {
            "seconds": per_step,
            "bytes_per_step": step_bytes,
            "bytes_per_s": per_step.inverse(step_bytes),
            "bytes_per_slot": arm.pool.bytes_per_slot,
        }
    return found


def _make_arm(settings: Settings, kind: _Kind, accepted: Tensor) -> _Arm:
    count, window = accepted.shape[1], settings.window
    spec = StateSpec(
        num_layers=1,
        key_heads=settings.key_heads,
        value_heads=settings.value_heads,
        key_dim=settings.head_dim,
        value_dim=settings.head_dim,
        conv_taps=4,
    )
    rows = count * window
    pool = kind(spec, num_slots=count, max_rows=rows, window=window)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    inputs = DeltaInputs(
        random(rows, spec.conv_channels),
        random(rows, spec.value_heads),
        random(rows, spec.value_heads),
        random(spec.conv_channels, spec.conv_taps),
        torch.linspace(-8, -1, spec.value_heads),
        torch.zeros(spec.value_heads),
        spec.key_heads,
        spec.value_heads,
        spec.key_dim,
        spec.value_dim,
    )
    nothing = Rows(slice(rows, rows), slice(count, count))
    meta = StateMetadata(
        torch.arange(0, rows + 1, window, dtype=torch.int32),
        torch.arange(count, dtype=torch.int32),
        torch.zeros(count, dtype=torch.int32),
        Classes(Rows(slice(0, rows), slice(0, count)), nothing, nothing),
    )
    out = torch.empty(rows, spec.value_heads * spec.value_dim, dtype=torch.bfloat16)
    return _Arm(pool, lambda: pool.advance(0, inputs, meta, out), accepted)


def _moved(pool: StatePool, accepted: Tensor) -> int:
    """Bytes of states and records that the next step and its commit read and write.

    Snapshot: the state is read, one is written for each row, and the one behind the last accepted row is
    copied. Native: the state is read and a record is written for each row; for what is accepted the records
    are read and the state is read and written. Replay: the state is read, what is recorded is read, a record
    is written for each row, and where a slot is folded its state is written.
    """
    count, state = len(accepted), pool.state[0, 0].nbytes
    if isinstance(pool, SnapshotPool):
        return count * state * (1 + pool.window + 2)
    if isinstance(pool, NativePool):
        records = pool.records.layer(0)
        row = sum(part[0, 0].nbytes for part in (records.k, records.u, records.decay))
        return count * (3 * state + pool.window * row) + int(accepted.sum()) * row
    assert isinstance(pool, ReplayPool), "no other pool is measured"
    record = sum(ring[0, 0].nbytes for ring in (pool.u, pool.k, pool.log_gate)) // pool.size
    recorded, folds = (int(c[:count].sum()) for c in (pool.cursors.write_pos, pool.cursors.flush))
    return count * (state + pool.window * record) + recorded * record + folds * state
