"""Checks of names: what a server will take each linear for, against what is stored."""

from __future__ import annotations

from ocrquant.verify.declaration import Declaration, TargetRule
from ocrquant.verify.findings import Findings
from ocrquant.verify.linears import Linears, StoredLinear
from ocrquant.verify.servers import SERVED_MODELS, ServedModel, ServedModule, ShardsDisagreeError, served_rule

__all__ = ["check_aliases", "check_names"]

_RENAMED = (
    ("model.visual.", "visual."),
    ("model.visual.", "model.model.visual."),
    ("visual.", "model.visual."),
)
_RESPELLED = ((".qkv", ".qkv_proj"), (".proj", ".out_proj"))
_IGNORE = "ignore it by patterns that begin with re:.*, and name no class of modules as a target"


def check_names(architecture: str, declaration: Declaration, linears: Linears, findings: Findings) -> None:
    """Asks the rules of vLLM for each of its layers, and compares the answer with what is stored."""
    _check_experts(linears, findings)
    model = SERVED_MODELS.get(architecture)
    if model is None:
        known = "an architecture whose names in vLLM are known here"
        findings.add(
            "server-not-modelled", architecture, expected=known, given="another", fix="load it once to see"
        )
        return
    for side in ("decoder", "vision"):
        names = [linear.name for linear in linears.items.values() if linear.side == side]
        for module in model.modules(names, is_vision=side == "vision"):
            _check_module(declaration, module, model, linears, findings)


def _check_experts(linears: Linears, findings: Findings) -> None:
    """Whatever their names: servers choose one method for all experts of a layer."""
    layers: dict[str, dict[tuple[object, object], StoredLinear]] = {}
    for name, linear in linears.items.items():
        module, found, _ = name.partition(".experts.")
        if found and linear.side == "decoder":
            layers.setdefault(f"{module}.experts", {}).setdefault(_stored(linear), linear)
    for module, kinds in layers.items():
        if len(kinds) > 1:
            findings.add(
                "experts-disagree",
                module,
                expected="one scheme for all experts of the layer",
                given=", ".join(f"{linear.name} {linear.stored or 'bf16'}" for linear in kinds.values()),
                fix="give experts.gate_up and experts.down of a layer one precision",
            )


def _check_module(
    declaration: Declaration,
    module: ServedModule,
    model: ServedModel,
    linears: Linears,
    findings: Findings,
) -> None:
    shards = [linears.items[name] for name in module.shards]
    try:
        rule = served_rule(declaration, module, model)
    except ShardsDisagreeError:
        rule = None
        _disagree(module, shards, findings)
        return
    if len({_stored(shard) for shard in shards}) > 1:
        _disagree(module, shards, findings)
        return
    stored = shards[0].stored
    if served_rule(declaration, module, model, classes_first=True) is not rule:
        findings.add(
            "match-depends-on-version",
            module.shards[0],
            expected=f"one rule for {module.name}, as vLLM calls it",
            given="another one before vLLM 0.32 than since",
            fix="name no class of modules as a target beside other targets",
        )
    if stored and rule is None:
        findings.add(
            "name-not-matched",
            module.shards[0],
            expected=f"a target that matches {module.name}, as vLLM calls it",
            given="none",
            fix="write targets as patterns that begin with re:.*",
        )
    elif not stored and rule is not None:
        findings.add(
            "name-matched-wrongly",
            module.shards[0],
            expected=f"no target for {module.name}, as vLLM calls it",
            given=rule.label,
            fix=_IGNORE,
        )
    elif (said := shards[0].declared) is not None and rule is not None and rule.scheme != said.scheme:
        findings.add(
            "name-matched-wrongly",
            module.shards[0],
            expected=f"{_name(said)} for {module.name}, as vLLM calls it",
            given=_name(rule),
            fix="name no class of modules as a target beside other targets",
        )


def _stored(linear: StoredLinear) -> tuple[object, object]:
    scheme = linear.declared.scheme if linear.stored and linear.declared else None
    return linear.stored, scheme


def _disagree(module: ServedModule, shards: list[StoredLinear], findings: Findings) -> None:
    given = ", ".join(f"{shard.name.rpartition('.')[2]} {shard.stored or 'bf16'}" for shard in shards)
    findings.add(
        "fused-shards-disagree",
        module.name,
        expected="one scheme for all linears of the fused product",
        given=given,
        fix="give them one precision, and name all of them in the same list",
    )


def _name(rule: TargetRule) -> str:
    return rule.scheme.name if rule.scheme is not None else rule.label


def check_aliases(declaration: Declaration, linears: Linears, findings: Findings) -> None:
    """What stays as it is under the other names that readers give the vision side and draft heads.

    Patterns of ModelOpt are names of the checkpoint, and readers rename them together with the layers.
    """
    is_renamed = declaration.method == "compressed-tensors"
    for linear in linears.items.values():
        if linear.stored or linear.side == "decoder":
            continue
        code = "draft-name-not-covered" if linear.side == "draft" else "vision-name-not-covered"
        for name in sorted(_aliases(linear.name)) if is_renamed else [linear.name]:
            if rules := declaration.rules_of(name):
                findings.add(
                    code, linear.name, expected=f"no rule for {name}", given=rules[0].label, fix=_IGNORE
                )
                break


def _aliases(name: str) -> set[str]:
    """The name under the prefixes and spellings that servers use."""
    names = {name}
    names |= {after + name.removeprefix(before) for before, after in _RENAMED if name.startswith(before)}
    for before, after in _RESPELLED:
        names |= {n.removesuffix(before) + after for n in list(names) if n.endswith(before)}
    return names
