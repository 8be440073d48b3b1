"""Checks of scales by their values: finite, positive, and equal where a server keeps one for several linears.

Reads scales, which are small beside the weights, and no codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from ocrquant.formats import Precision
from ocrquant.verify.findings import Findings
from ocrquant.verify.folder import CheckpointFolder
from ocrquant.verify.linears import Linears, StoredLinear
from ocrquant.verify.schemes import Scheme
from ocrquant.verify.servers import FUSED

__all__ = ["check_scales", "check_shared_scales", "check_values"]


def check_scales(folder: CheckpointFolder, linears: Linears, findings: Findings) -> None:
    """Every scale of every quantized linear is finite and above zero."""
    for linear, scheme in _quantized(linears):
        for part in scheme.parts:
            name = f"{linear.name}.{part.name}"
            if part.role != "codes" and name in folder.tensors:
                check_values(folder, name, findings)


def check_values(folder: CheckpointFolder, name: str, findings: Findings) -> None:
    """The numbers of one scale."""
    values = folder.read(name).float()
    if num_bad := int((~torch.isfinite(values)).sum()):
        findings.add(
            "scale-not-finite",
            name,
            expected="finite numbers",
            given=f"{num_bad} of {values.numel()} that are not",
            fix="quantize this linear again or keep it in bf16; its weight or its input may be all zero",
        )
    elif num_bad := int((values <= 0).sum()):
        findings.add(
            "scale-not-positive",
            name,
            expected="numbers above 0",
            given=f"{num_bad} of {values.numel()} that are not, {values.min().item():g} the smallest",
            fix="quantize this linear again, or keep it in bf16",
        )


def check_shared_scales(folder: CheckpointFolder, linears: Linears, findings: Findings) -> None:
    """One scale a tensor for linears that run as one product.

    Raises nothing: what differs becomes a finding. NVFP4 decodes wrongly with another global scale; FP8 by
    tensor is rounded again.
    """
    for members in fused_members(linears.items):
        schemes = [linears.items[name].declared for name in members]
        scheme = schemes[0].scheme if schemes[0] is not None else None
        if scheme is None or any(rule is None or rule.scheme != scheme for rule in schemes):
            continue
        for part in scheme.parts:
            names = [f"{name}.{part.name}" for name in members]
            is_number = part.role in ("global", "input") or (
                part.role == "scale" and scheme.precision is Precision.FP8
            )
            if is_number and all(n in folder.tensors and folder.tensors[n].num_elements == 1 for n in names):
                _compare(folder, names, findings, "global" if part.role == "global" else "tensor")


def _compare(folder: CheckpointFolder, names: Sequence[str], findings: Findings, kind: str) -> None:
    values = [folder.read(name).float().item() for name in names]
    if len(set(values)) > 1:
        given = ", ".join(
            f"{name.split('.')[-2]} {value:g}" for name, value in zip(names, values, strict=True)
        )
        findings.add(
            f"{kind}-scales-differ",
            names[0],
            expected="one value for all linears of the fused product",
            given=given,
            fix="quantize them with one scale, that of the largest magnitude of all",
        )


def fused_members(names: Mapping[str, StoredLinear]) -> Iterator[list[str]]:
    """Linears that a server runs as one product."""
    for name in names:
        parent, _, leaf = name.rpartition(".")
        for shards in FUSED.values():
            if leaf == shards[0]:
                found = [f"{parent}.{shard}" for shard in shards if f"{parent}.{shard}" in names]
                if len(found) > 1:
                    yield found


def _quantized(linears: Linears) -> Iterator[tuple[StoredLinear, Scheme]]:
    for linear in linears.items.values():
        rule = linear.declared
        if linear.stored and rule is not None and rule.scheme is not None:
            yield linear, rule.scheme
