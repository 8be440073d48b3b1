"""All checks of a checkpoint, from its files to its weights, in the order in which they run.

Knows which check needs what. Does not know how a check works, nor how findings are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Protocol

from ocrquant.adapters import ModelMap
from ocrquant.artifacts import Assignment
from ocrquant.checkpoint import CheckpointReader
from ocrquant.errors import TargetError
from ocrquant.formats import Precision
from ocrquant.verify.declaration import Declaration, read_declaration
from ocrquant.verify.findings import Findings
from ocrquant.verify.folder import CheckpointFolder
from ocrquant.verify.linears import Linears, read_linears
from ocrquant.verify.model_checks import (
    check_cache,
    check_drafts,
    check_positions,
    check_processor,
    check_ties,
)
from ocrquant.verify.name_checks import check_aliases, check_names
from ocrquant.verify.plan_checks import check_plan
from ocrquant.verify.source_checks import check_files, check_weights
from ocrquant.verify.tensor_checks import check_declared, check_patterns, check_tensors
from ocrquant.verify.value_checks import check_scales, check_shared_scales

__all__ = ["ServerLimits", "verify_checkpoint"]

_OWN_SCHEMES = frozenset({"FP8 by channel, inputs by token", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4"})
"""Schemes that the limits of servers are stated for."""


class ServerLimits(Protocol):
    """What a server cannot read, asked by who knows it."""

    def __call__(
        self, file_format: str, model_map: ModelMap, choices: Mapping[str, Precision], *, has_kv: bool
    ) -> None:
        """Raises a TargetError where the server cannot read it."""


def verify_checkpoint(
    path: Path,
    *,
    source: Path | None = None,
    plan: Assignment | None = None,
    limits: ServerLimits | None = None,
) -> Findings:
    """Checks a checkpoint, whoever wrote it; without a source no weight is read.

    Args:
        path: Folder in the format of compressed-tensors or ModelOpt.
        source: Folder of the model that it was made from.
        plan: The plan that it was made from.
        limits: Those of the server that is to read it.

    Returns:
        What was found; nothing is raised for a fault of the checkpoint that can be described as one.

    Raises:
        ModelError: It is no checkpoint, or one in a format that is not known here, or the source is unusable.
        ArtifactError: The plan is not one of this model.
    """
    findings = Findings(str(path))
    with CheckpointFolder(path, findings) as folder:
        declaration = read_declaration(folder, findings)
        linears = read_linears(folder, declaration)
        findings.facts |= _facts(folder, declaration, linears)
        _check_alone(folder, declaration, linears, findings)
        if limits is not None and declaration is not None:
            _check_limits(declaration, linears, limits, findings)
        if plan is not None:
            check_plan(folder, declaration, linears, plan, findings)
        if source is not None:
            _check_against(folder, linears, source, findings)
    return findings


def _check_alone(
    folder: CheckpointFolder, declaration: Declaration | None, linears: Linears, findings: Findings
) -> None:
    check_processor(folder.path, findings)
    check_ties(folder, linears, findings)
    check_drafts(folder, findings)
    check_positions(folder, findings)
    check_declared(declaration, linears, findings, is_known=linears.model_map is not None)
    check_tensors(folder, linears, findings)
    check_scales(folder, linears, findings)
    check_shared_scales(folder, linears, findings)
    check_cache(folder, declaration, linears, findings)
    if declaration is not None:
        check_patterns(folder, declaration, findings)
        check_names(folder.architecture, declaration, linears, findings)
        check_aliases(declaration, linears, findings)


def _check_limits(
    declaration: Declaration, linears: Linears, limits: ServerLimits, findings: Findings
) -> None:
    schemes = {rule.scheme.name if rule.scheme else rule.label for rule in declaration.rules}
    if linears.model_map is None or not schemes <= _OWN_SCHEMES:
        findings.add(
            "server-not-modelled",
            "limits of the server",
            expected="a known architecture in FP8 by channel or NVFP4",
            given=linears.reason or ", ".join(sorted(schemes - _OWN_SCHEMES)),
            fix="load it once to see",
        )
        return
    names = [*(linear.name for linear in linears.model_map.linears()), *linears.model_map.kept]
    choices = {name: linears.items[name].stored or Precision.BF16 for name in names}
    try:
        limits(declaration.method, linears.model_map, choices, has_kv=declaration.cache is not None)
    except TargetError as error:
        findings.add(
            "target-cannot-serve", error.thing, expected=error.expected, given=error.given, fix=error.fix
        )


def _check_against(folder: CheckpointFolder, linears: Linears, source: Path, findings: Findings) -> None:
    check_files(folder.path, source, findings)
    with CheckpointReader(source) as reader:
        errors = check_weights(folder, linears, reader, findings)
    for precision in Precision:
        relative = [error.relative for error in errors if error.stored is precision]
        if relative:
            findings.facts[f"relative error of {precision} weights"] = (
                f"median {median(relative):.4f}, largest {max(relative):.4f}, {len(relative)} linears"
            )


def _facts(folder: CheckpointFolder, declaration: Declaration | None, linears: Linears) -> dict[str, str]:
    counts: dict[str, int] = {}
    for linear in linears.items.values():
        scheme = linear.declared.scheme if linear.stored and linear.declared else None
        name = scheme.name if scheme else str(linear.stored or "unquantized")
        counts[name] = counts.get(name, 0) + 1
    facts = {
        "architecture": folder.architecture,
        "format": declaration.method if declaration else "none",
        "linears": ", ".join(f"{count} {name}" for name, count in sorted(counts.items())),
        "cache": (declaration.cache if declaration else None) or "bf16",
        "tensors": f"{len(folder.tensors)}, {folder.num_bytes} bytes",
    }
    if linears.model_map is None:
        facts["structure"] = f"not known: {linears.reason}"
    return facts
