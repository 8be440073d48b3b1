"""A checkpoint against the plan that it was made from: precisions, cache and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ocrquant.artifacts import Assignment
from ocrquant.checkpoint.layout import DTYPE_BYTES
from ocrquant.errors import ArtifactError
from ocrquant.formats import FORMATS, Precision
from ocrquant.verify.declaration import Declaration
from ocrquant.verify.findings import Findings
from ocrquant.verify.folder import CheckpointFolder
from ocrquant.verify.linears import Linears

__all__ = ["check_plan"]

_AGAIN = "run the stage `export` again"


def check_plan(
    folder: CheckpointFolder,
    declaration: Declaration | None,
    linears: Linears,
    plan: Assignment,
    findings: Findings,
) -> None:
    """Every linear has the precision of its group, and the cache that of the plan.

    Raises:
        ArtifactError: The plan is one of another model, or the structure of this one is not known.
    """
    if linears.model_map is None:
        raise ArtifactError(
            plan.FILE_NAME, expected="a known structure", given=linears.reason, fix="verify without a plan"
        )
    groups = {group.name for group in linears.model_map.groups}
    if odd := sorted(groups ^ set(plan.groups)):
        raise ArtifactError(
            plan.FILE_NAME,
            expected="the groups of this checkpoint",
            given=f"{odd[0]} in one of them alone",
            fix="name the plan of this model",
        )
    for group in linears.model_map.groups:
        for linear in group.linears:
            stored = linears.items[linear.name].stored or Precision.BF16
            if stored is not plan.groups[group.name]:
                findings.add(
                    "plan-differs", linear.name, expected=plan.groups[group.name], given=stored, fix=_AGAIN
                )
    cache = (declaration.cache if declaration else None) or "bf16"
    if cache != plan.kv_cache:
        findings.add("plan-cache-differs", "cache", expected=plan.kv_cache, given=cache, fix=_AGAIN)
    _check_size(folder, declaration, linears, plan.groups, findings)


def _check_size(
    folder: CheckpointFolder,
    declaration: Declaration | None,
    linears: Linears,
    groups: Mapping[str, Precision],
    findings: Findings,
) -> None:
    """Bytes of the searched weights, scales of weights included."""
    assert linears.model_map is not None
    predicted = stored = 0
    for group in linears.model_map.groups:
        row = FORMATS[groups[group.name]]
        for linear in group.linears:
            predicted += row.weight_bytes(linear.out_features, linear.in_features)
            stored += weight_bytes(folder, linears, linear.name)
    if predicted != stored:
        findings.add("size-differs", "searched weights", expected=predicted, given=stored, fix=_AGAIN)


def weight_bytes(folder: CheckpointFolder, linears: Linears, name: str) -> int:
    """Bytes of a linear's weight as it is stored, with its own scales and without those of its input."""
    linear = linears.items[name]
    scheme = linear.declared.scheme if linear.stored and linear.declared else None
    parts = ["weight"] if scheme is None else [p.name for p in scheme.parts if p.role != "input"]
    if (weight := folder.stacked.get(f"{name}.weight")) is not None and linear.stored is None:
        return DTYPE_BYTES[folder.tensors[weight.stack].dtype] * prod(weight.shape)
    specs = (folder.tensors.get(f"{name}.{part}") for part in parts)
    return sum(spec.num_bytes for spec in specs if spec is not None)
