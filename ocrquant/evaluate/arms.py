"""The arms of the comparison as engines: the source, uniform plans of rounded weights, the exported plan.

The plan is judged by what was written: its engine reads the folder as any server does. Knows what an arm is
made of, and says what runs. Does not know what it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from ocrquant.artifacts import (
    ArmName,
    CheckpointRecord,
    DigestCache,
    LinearsRecord,
    Rounding,
    RunFolder,
    RuntimeRecord,
    Sensitivity,
    sha256_data,
)
from ocrquant.assign.problem import uniform_plan
from ocrquant.checkpoint import CheckpointReader, StoredCheckpoint
from ocrquant.engine.device import Device
from ocrquant.engine.loading import DTYPES, Runtime, RuntimeSettings, make_runtime
from ocrquant.errors import ArtifactError
from ocrquant.evaluate.rounded_source import RoundedSource
from ocrquant.formats import Precision
from ocrquant.kernels.extension import extension
from ocrquant.kernels.selection import choices
from ocrquant.recipe.sections import EvaluateSection

__all__ = ["ArmPlan", "check_checkpoint", "environment_digest", "runtime_record", "uniform_arm"]


_UNIFORM: dict[ArmName, Precision] = {"fp8": Precision.FP8, "nvfp4": Precision.NVFP4}


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """What each arm consists of, before any weight is read.

    Attributes:
        names: Arms, bf16 first.
        groups: Precision by group in bf16 and the uniform arms.
        record: The checkpoint that holds the plan.
        has_fp8_cache: Whether it keeps FP8 caches.
    """

    names: list[ArmName]
    groups: dict[ArmName, dict[str, Precision]]
    record: CheckpointRecord
    has_fp8_cache: bool

    @classmethod
    def of(cls, run: RunFolder, section: EvaluateSection) -> ArmPlan:
        """Reads it from a run folder.

        Raises:
            ArtifactError: An artefact is missing, or the checkpoint is not the one of its record.
        """
        groups = run.load(Sensitivity).groups
        record = run.load(CheckpointRecord)
        check_checkpoint(run.path, record, run.digests)
        with StoredCheckpoint(run.path / record.folder) as stored:
            has_fp8_cache = bool(stored.kv)
        names: list[ArmName] = ["bf16", *(name for name in section.arms if name != "bf16")]
        found: dict[ArmName, dict[str, Precision]] = {
            name: uniform_plan(groups, _UNIFORM[name]) if name in _UNIFORM else {}
            for name in names
            if name != "plan"
        }
        return cls(names, found, record, has_fp8_cache)


def uniform_arm(
    groups: Mapping[str, Precision],
    rounding: Rounding,
    run: Path,
    source: Path,
    settings: RuntimeSettings,
    *,
    has_fp8_cache: bool,
) -> Runtime:
    """A uniform plan with the same rounded weights, smoothing and caches that the chosen plan draws on.

    Args:
        groups: Precision by group.
        rounding: The rounded weights.
        run: The run folder that holds them.
        source: Folder of the unquantized model.
        settings: How to run it.
        has_fp8_cache: Whether the chosen plan keeps FP8 caches.

    Raises:
        ArtifactError: A group was not rounded to its precision.
        ModelError: The runtime does not run the model.
    """
    with CheckpointReader(source) as reader, rounding.open_weights(run) as weights:
        kv = rounding.kv if has_fp8_cache else ()
        return make_runtime(source, RoundedSource(reader, rounding, weights, groups, kv), settings)


def runtime_record(runtime: Runtime, ops: Collection[str]) -> RuntimeRecord:
    """What a runtime computed with, from what its model holds and what its ops ran on.

    Args:
        runtime: After it has run.
        ops: Names of the ops that ran.
    """
    ran = choices()
    kernels = {ran[op].implementation for op in ops}
    linears = Counter((record.stored, record.asked, record.reads) for record in runtime.model.linears)
    settings = runtime.settings
    return RuntimeRecord(
        device=_device_name(settings),
        dtype=settings.dtype,
        kernels="mixed" if len(kernels) > 1 else "native" if kernels == {"native"} else "reference",
        linears=[
            LinearsRecord(stored=stored, asked=asked, reads=reads, count=count)
            for (stored, asked, reads), count in sorted(linears.items())
        ],
        kv_cache=settings.dtype if runtime.model.kv_scales is None else Precision.FP8,
    )


def environment_digest(settings: RuntimeSettings) -> str:
    """SHA-256 of what decides how numbers are rounded: device, kernels and versions.

    Numbers of another device or other kernels are not continued here.
    """
    native = Device(torch.device(settings.device), DTYPES[settings.dtype]).can_capture
    module = extension() if native else None
    kernels = "reference" if module is None else f"native {module.isa()}"
    versions = [torch.__version__, transformers.__version__]
    return sha256_data([_device_name(settings), settings.dtype, settings.activations, kernels, *versions])


def check_checkpoint(folder: Path, record: CheckpointRecord, digests: DigestCache) -> None:
    """Compares every file of a checkpoint with its record.

    Raises:
        ArtifactError: A file is missing or another one.
    """
    for name, expected in record.files().items():
        if (digest := digests.file(folder / name)) != expected.sha256:
            fix = "delete the checkpoint and run the command again"
            raise ArtifactError(folder / name, expected=f"SHA-256 {expected.sha256}", given=digest, fix=fix)


def _device_name(settings: RuntimeSettings) -> str:
    device = torch.device(settings.device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
