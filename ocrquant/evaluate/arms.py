"""The arms of the comparison: uniform plans from the rounded weights, the plan as its checkpoint has it.

The plan is judged by what was written: every tensor of the folder takes its place in the model, those of
quantized linears as a server computes them, all others as they are. Knows how an arm is put into a model.
Does not know what it is shown there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import ArmName, CheckpointRecord, DigestCache, KvScales, Rounding
from ocrquant.checkpoint import CheckpointReader, StoredCheckpoint
from ocrquant.errors import ArtifactError
from ocrquant.formats import Precision
from ocrquant.simulate import SimulatedLinear, Smoothing, apply_plan, rounded_linears, rounded_smoothing

__all__ = ["Arm", "applied", "check_checkpoint", "exported_arm", "plain_arm", "uniform_arm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One model to compare.

    Attributes:
        name: Its name.
        linears: Quantized linears by module name.
        smoothing: What is folded into norms and the linears after them.
        kv: FP8 scales of caches.
        parameters: Other parameters that differ from the source, by name.
    """

    name: ArmName
    linears: Mapping[str, SimulatedLinear] = field(default_factory=dict)
    smoothing: Smoothing | None = None
    kv: Sequence[KvScales] = ()
    parameters: Mapping[str, Tensor] = field(default_factory=dict)


def plain_arm() -> Arm:
    """The source model as it is."""
    return Arm(name="bf16")


def uniform_arm(
    name: ArmName,
    groups: Mapping[str, Precision],
    rounding: Rounding,
    folder: Path,
    *,
    has_fp8_cache: bool,
    device: torch.device,
) -> Arm:
    """A uniform plan with the same rounded weights, smoothing and caches that the chosen plan draws on.

    Args:
        name: Its name.
        groups: Precision by group.
        rounding: The rounded weights.
        folder: The run folder that holds them.
        has_fp8_cache: Whether the chosen plan keeps FP8 caches.
        device: Where to compute.

    Raises:
        ArtifactError: A group was not rounded to its precision.
    """
    with rounding.open_weights(folder) as weights:
        linears = rounded_linears(rounding, weights, groups, device=device)
        smoothing = rounded_smoothing(weights) if linears else None
    return Arm(name=name, linears=linears, smoothing=smoothing, kv=rounding.kv if has_fp8_cache else ())


def exported_arm(document: DocumentModel, folder: Path) -> Arm:
    """The plan, read back from the folder that was exported.

    Args:
        document: The source model.
        folder: The checkpoint.

    Raises:
        ModelError: The folder is damaged.
        ArtifactError: It lacks a parameter of the model, or has one of another shape.
    """
    with StoredCheckpoint(folder) as stored, CheckpointReader(folder) as reader:
        linears = {
            name: SimulatedLinear.of(
                stored.weight(name), stored.input_encode_scale(name), device=document.device
            )
            for name in stored.linears
        }
        replaced = {f"{name}.weight" for name in linears}
        parameters = {}
        for name, parameter in document.model.named_parameters():
            if name in replaced:
                continue
            if name not in reader.specs:
                fix = "export the model again"
                raise ArtifactError(folder, expected=f"a tensor {name}", given="none", fix=fix)
            tensor = reader.read(name)
            if tensor.shape != parameter.shape:
                raise ArtifactError(
                    f"{folder}: {name}",
                    expected=f"shape {list(parameter.shape)}",
                    given=list(tensor.shape),
                    fix="export the model again",
                )
            if not torch.equal(tensor, parameter.detach().cpu()):
                parameters[name] = tensor.to(parameter.device, parameter.dtype)
        return Arm(name="plan", linears=linears, kv=stored.kv, parameters=parameters)


@contextmanager
def applied(model: nn.Module, arm: Arm) -> Iterator[None]:
    """Makes a model compute as an arm for the length of a ``with`` block.

    Raises:
        ModelError: A name is no module of the model.
        ShapeError: A tensor does not have the shape of what it stands in for.
    """
    with ExitStack() as undo:
        parameters = dict(model.named_parameters())
        for name, tensor in arm.parameters.items():
            undo.callback(_replace(parameters[name], tensor))
        undo.enter_context(apply_plan(model, arm.linears, smoothing=arm.smoothing, kv=arm.kv))
        yield


def check_checkpoint(folder: Path, record: CheckpointRecord, digests: DigestCache) -> None:
    """Compares every file of a checkpoint with its record.

    Raises:
        ArtifactError: A file is missing or another one.
    """
    for name, expected in record.files().items():
        if (digest := digests.file(folder / name)) != expected.sha256:
            fix = "delete the checkpoint and run the command again"
            raise ArtifactError(folder / name, expected=f"SHA-256 {expected.sha256}", given=digest, fix=fix)


def _replace(parameter: nn.Parameter, tensor: Tensor) -> Callable[[], None]:
    original = parameter.data

    def restore() -> None:
        parameter.data = original

    parameter.data = tensor
    return restore
