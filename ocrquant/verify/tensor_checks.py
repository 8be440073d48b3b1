"""Checks of tensors by their headers: declared and present, nothing besides, the right dtypes and shapes.

Reads no tensor data.
"""

from __future__ import annotations

from collections.abc import Iterable

from ocrquant.adapters import vision_modules
from ocrquant.checkpoint.modelopt import is_excluded
from ocrquant.checkpoint.patterns import matches
from ocrquant.formats import FORMATS
from ocrquant.verify.declaration import CLASS_TARGETS, Declaration
from ocrquant.verify.findings import Findings
from ocrquant.verify.folder import CheckpointFolder
from ocrquant.verify.linears import Linears, StoredLinear
from ocrquant.verify.schemes import PART_NAMES, Part, Scheme

__all__ = ["check_declared", "check_patterns", "check_tensors"]

_AGAIN = "export it again"


def check_declared(
    declaration: Declaration | None, linears: Linears, findings: Findings, *, is_known: bool
) -> None:
    """What the configuration says of each linear against what is stored.

    Args:
        declaration: What it says.
        linears: What is stored.
        findings: Where to note what differs.
        is_known: Whether the linears are known to be linears; else a rule for all of them proves nothing.
    """
    if declaration is None:
        stored = [linear.name for linear in linears.items.values() if linear.stored]
        if stored:
            findings.add(
                "quantization-config-missing",
                "config.json",
                expected=f"a quantization_config, since {stored[0]} is quantized",
                given="none",
                fix=_AGAIN,
            )
        else:
            findings.add(
                "not-quantized", "config.json", expected="a plan", given="none", fix="nothing, if it is meant"
            )
        return
    for linear in linears.items.values():
        _check_one(linear, findings, may_be_absent=declaration.catches_all and not is_known)


def _check_one(linear: StoredLinear, findings: Findings, *, may_be_absent: bool) -> None:
    rules = linear.rules
    if len(rules) > 1 and len({rule.scheme for rule in rules}) > 1:
        labels = " and ".join(rule.label for rule in rules)
        findings.add("declared-twice", linear.name, expected="one rule", given=labels, fix="name it once")
    if not rules and linear.stored:
        findings.add(
            "stored-not-declared",
            linear.name,
            expected="a rule that names it",
            given=f"{linear.stored} codes and none",
            fix=_AGAIN,
        )
    # Draft heads have a check of their own: the main model of a server never loads them.
    elif rules and not linear.stored and linear.side != "draft" and not may_be_absent:
        findings.add(
            "declared-not-stored",
            linear.name,
            expected=f"codes, as {rules[0].label} says",
            given="a plain weight",
            fix="list it as ignored",
        )


def check_tensors(folder: CheckpointFolder, linears: Linears, findings: Findings) -> None:
    """Every tensor that a scheme needs, and none that it does not."""
    for linear in linears.items.values():
        rule = linear.declared
        if rule is not None and rule.scheme is None:
            continue
        scheme = rule.scheme if rule is not None and linear.stored else None
        if scheme is not None:
            _check_parts(folder, linear, scheme, findings)
    known = {
        f"{linear.name}.{part.name}"
        for linear in linears.items.values()
        if (rule := linear.declared) is not None and rule.scheme is not None and linear.stored
        for part in rule.scheme.parts
    }
    unchecked = {n for n, item in linears.items.items() if item.declared and item.declared.scheme is None}
    for name in folder.tensors:
        module, _, part = name.rpartition(".")
        if part in PART_NAMES and name not in known and module not in unchecked:
            scheme_name = _scheme_name(linears, module)
            findings.add(
                "tensor-undeclared", name, expected=f"tensors of {scheme_name}", given="one more", fix=_AGAIN
            )


def _scheme_name(linears: Linears, module: str) -> str:
    linear = linears.items.get(module)
    if linear is None or linear.declared is None or linear.declared.scheme is None:
        return "a linear that is not quantized"
    return linear.declared.scheme.name


def _check_parts(folder: CheckpointFolder, linear: StoredLinear, scheme: Scheme, findings: Findings) -> None:
    out_features, in_features = linear.shape
    row = FORMATS[scheme.precision]
    if not row.fits(in_features):
        findings.add(
            "width-unsuited",
            linear.name,
            expected=f"a width divisible by {row.width_multiple}",
            given=in_features,
            fix="keep this linear in bf16",
        )
        return
    for part in scheme.parts:
        spec = folder.tensors.get(f"{linear.name}.{part.name}")
        if spec is None:
            if part.name not in scheme.optional:
                findings.add(
                    "tensor-missing",
                    f"{linear.name}.{part.name}",
                    expected=f"it, as a part of {scheme.name}",
                    given="none",
                    fix=_AGAIN,
                )
            continue
        _check_part(part, spec.name, spec.dtype, spec.shape, (out_features, in_features), findings)


def _check_part(
    part: Part,
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    weight: tuple[int, int],
    findings: Findings,
) -> None:
    if dtype not in part.dtypes:
        expected = " or ".join(sorted(part.dtypes))
        findings.add("tensor-dtype", name, expected=expected, given=dtype, fix=_AGAIN)
    shapes = part.shapes(*weight)
    if shape not in shapes:
        expected = " or ".join(str(list(allowed)) for allowed in shapes)
        findings.add("tensor-shape", name, expected=expected, given=list(shape), fix=_AGAIN)


def check_patterns(folder: CheckpointFolder, declaration: Declaration, findings: Findings) -> None:
    """Targets and ignored names that mean nothing in this model: mostly those of another naming."""
    names = (*folder.tensors, *folder.stacked)
    modules = {prefix for name in names for prefix in _prefixes(name)} | {"lm_head"}
    # As transformers calls them, where that is not what the checkpoint does.
    modules |= {f"{module}.x" for module in vision_modules(folder.architecture)}
    lists = [*((rule.label, rule.targets) for rule in declaration.rules), ("ignore", declaration.ignore)]
    for where, patterns in lists:
        for pattern in patterns:
            if pattern not in CLASS_TARGETS and not _matches_any(pattern, modules, declaration.method):
                findings.add(
                    "target-matches-nothing",
                    f"{pattern} in {where}",
                    expected="a pattern that matches a module",
                    given="one that matches none",
                    fix="write the names as they are in the checkpoint",
                )


def _matches_any(pattern: str, modules: Iterable[str], method: str) -> bool:
    if method == "modelopt":
        return any(is_excluded(name, [pattern]) for name in modules)
    return any(matches(name, [pattern]) for name in modules)


def _prefixes(name: str) -> list[str]:
    steps = name.split(".")
    return [".".join(steps[:end]) for end in range(1, len(steps) + 1)]
