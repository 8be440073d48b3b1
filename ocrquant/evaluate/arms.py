"""The arms of the comparison as engines: the source, uniform plans of rounded weights, the exported plan.

The plan is judged by what was written: its engine reads the folder as any server does. Knows what an arm is
made of, and says what runs. Does not know what it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
import transformers

from ocrquant.artifacts import (
    CheckpointRecord,
    DigestCache,
    LinearsRecord,
    Rounding,
    RuntimeRecord,
    sha256_data,
)
from ocrquant.checkpoint import CheckpointReader
from ocrquant.engine.device import Device
from ocrquant.engine.loading import DTYPES, Runtime, RuntimeSettings, make_runtime
from ocrquant.errors import ArtifactError
from ocrquant.evaluate.rounded_source import RoundedSource
from ocrquant.formats import Precision
from ocrquant.kernels.extension import extension
from ocrquant.kernels.selection import choices

__all__ = ["check_checkpoint", "environment_digest", "runtime_record", "uniform_arm"]


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
