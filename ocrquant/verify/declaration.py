"""What a configuration says of each linear, in either format, before any server reads it in its own way.

Knows ``quantization_config`` and ``hf_quant_config.json`` of other programs too: what they say that cannot be
checked becomes a finding. Does not read tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ocrquant.checkpoint import FILE_FORMATS
from ocrquant.checkpoint.modelopt import is_excluded
from ocrquant.checkpoint.patterns import matches
from ocrquant.errors import ModelError
from ocrquant.verify.config_shape import check_shape
from ocrquant.verify.findings import Findings
from ocrquant.verify.folder import MODELOPT_FILE, CheckpointFolder
from ocrquant.verify.schemes import Scheme, compressed_scheme, modelopt_scheme

__all__ = ["Declaration", "TargetRule", "read_declaration"]

CLASS_TARGETS = frozenset({"Linear"})
"""Targets that mean every linear of a model, whatever its name."""


_CACHE_FIELDS: Mapping[str, tuple[object, ...]] = {
    "strategy": ("tensor", "attn_head"),
    "symmetric": (True,),
    "dynamic": (False, None),
}
"""Field of a cache's scheme -> what servers take; scales that are found on the fly are in no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRule:
    """Linears that share a scheme.

    Attributes:
        label: Where it is written.
        targets: Names and patterns of the linears.
        scheme: Their scheme; None where it is not one that can be checked.
    """

    label: str
    targets: tuple[str, ...]
    scheme: Scheme | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a checkpoint says of itself.

    Attributes:
        method: ``compressed-tensors`` or ``modelopt``.
        rules: Which linears are quantized.
        ignore: Which are not, whatever a rule says.
        catches_all: Whether a rule means every linear that is not ignored.
        cache: ``fp8`` for scales in E4M3, another word for a cache that is something else, None for none.
        cache_by_head: Whether the cache has a scale a head in place of one a layer.
    """

    method: str
    rules: tuple[TargetRule, ...]
    ignore: tuple[str, ...]
    catches_all: bool
    cache: str | None
    cache_by_head: bool = False

    def is_ignored(self, name: str) -> bool:
        """Whether a linear stays as it was."""
        return is_excluded(name, self.ignore) if self.method == "modelopt" else matches(name, self.ignore)

    def rules_of(self, name: str) -> list[TargetRule]:
        """The rules that name a linear; where none does, that for all linears."""
        if self.is_ignored(name):
            return []
        named = [rule for rule in self.rules if matches(name, rule.targets)]
        return named or [rule for rule in self.rules if CLASS_TARGETS & set(rule.targets)]


def read_declaration(folder: CheckpointFolder, findings: Findings) -> Declaration | None:
    """What the configuration of a folder says; None where nothing is quantized.

    Raises:
        ModelError: It is quantized in a format that is not known here, or a field has a wrong type.
    """
    said = folder.quantization
    if (whole := folder.config.get("quantization_config")) is not None:
        check_shape(f"{folder.path}/config.json", whole)
    check_shape(f"{folder.path}/{MODELOPT_FILE}", _said(folder.modelopt or {}))
    if said is None:
        if folder.modelopt is None:
            return None
        findings.add(
            "configuration-incomplete",
            "config.json",
            expected=f"a quantization_config that says what {MODELOPT_FILE} says",
            given="none",
            fix="export it again",
        )
        said = {"quant_method": "modelopt", **_said(folder.modelopt)}
    method = str(said.get("quant_method"))
    if method not in FILE_FORMATS:
        raise ModelError(
            f"quant_method in {folder.path}",
            expected=" or ".join(FILE_FORMATS),
            given=method,
            fix="name a checkpoint in one of these formats",
        )
    if method == "modelopt":
        _compare_files(folder, said, findings)
        return _modelopt(said, findings)
    return _compressed(said, findings)


def _compressed(said: Mapping[str, Any], findings: Findings) -> Declaration:
    rules = []
    for label, group in (said.get("config_groups") or {}).items():
        scheme = compressed_scheme(group)
        if scheme is None:
            weights = {k: (group.get("weights") or {}).get(k) for k in ("num_bits", "type", "strategy")}
            _unknown(findings, f"config_groups.{label}", weights)
        rules.append(TargetRule(label=label, targets=tuple(group.get("targets") or ()), scheme=scheme))
    _check_sparsity(said.get("sparsity_config") or {}, findings)
    cache = said.get("kv_cache_scheme") or {}
    _check_cache_scheme(cache, findings)
    return Declaration(
        method="compressed-tensors",
        rules=tuple(rules),
        ignore=tuple(said.get("ignore") or ()),
        catches_all=any(CLASS_TARGETS & set(rule.targets) for rule in rules),
        cache=_cache(cache, said, findings),
        cache_by_head=cache.get("strategy") == "attn_head",
    )


def _modelopt(said: Mapping[str, Any], findings: Findings) -> Declaration:
    algorithm = str(said.get("quant_algo"))
    layers = said.get("quantized_layers") or {}
    if algorithm != "MIXED_PRECISION":
        layers = {}
    by_algorithm: dict[str, list[str]] = {}
    for name, layer in layers.items():
        by_algorithm.setdefault(str(layer.get("quant_algo")), []).append(name)
    if algorithm not in ("MIXED_PRECISION", "None"):
        by_algorithm = {algorithm: ["Linear"]}
    rules = []
    for name, targets in by_algorithm.items():
        scheme = modelopt_scheme(name)
        if scheme is None:
            _unknown(findings, "quant_algo", name)
        rules.append(TargetRule(label=name, targets=tuple(targets), scheme=scheme))
    return Declaration(
        method="modelopt",
        rules=tuple(rules),
        ignore=tuple(said.get("ignore") or said.get("exclude_modules") or ()),
        catches_all=any(CLASS_TARGETS & set(rule.targets) for rule in rules),
        cache=_cache(said.get("kv_cache_scheme") or said.get("kv_cache_quant_algo"), said, findings),
    )


def _unknown(findings: Findings, what: str, given: object) -> None:
    findings.add(
        "scheme-unknown",
        what,
        expected="FP8 or NVFP4 in one of the ways of compressed-tensors or ModelOpt",
        given=given,
        fix="check what it describes by other means",
    )


def _check_sparsity(said: Mapping[str, Any], findings: Findings) -> None:
    """No weight is sparse: compressed-tensors unpacks none any more, and vLLM 0.32 stops at targets."""
    form, targets = said.get("format"), said.get("targets")
    if said and (form != "dense" or targets):
        findings.add(
            "sparsity-declared",
            "sparsity_config",
            expected="none, or the format dense without targets",
            given=f"format {form}, targets {targets or 'none'}",
            fix="store the weights whole and export them again",
        )


def _check_cache_scheme(scheme: Mapping[str, Any], findings: Findings) -> None:
    """What vLLM 0.32 asks of a cache (``CompressedTensorsKVCacheMethod.validate_kv_cache_scheme``)."""
    for key, accepted in _CACHE_FIELDS.items():
        if scheme and scheme.get(key) not in accepted:
            findings.add(
                "cache-scheme-unknown",
                f"kv_cache_scheme.{key}",
                expected=" or ".join(map(str, accepted)),
                given=scheme.get(key),
                fix="export the cache with one scale a layer",
            )


def _cache(scheme: object, said: Mapping[str, Any], findings: Findings) -> str | None:
    """The precision of the cache: E5M2 has two bits of mantissa and ruins keys and values."""
    if not scheme:
        return None
    fields = scheme if isinstance(scheme, Mapping) else {"name": str(scheme)}
    text = " ".join(str(value) for value in (*fields.values(), said.get("kv_cache_dtype"))).lower()
    is_fp8 = fields.get("num_bits") == 8 and fields.get("type") == "float"
    if (is_fp8 or str(scheme).upper() == "FP8") and "e5m2" not in text:
        return "fp8"
    findings.add(
        "cache-not-e4m3", "cache scheme", expected="FP8 in E4M3", given=fields, fix="export the cache in E4M3"
    )
    return "another"


def _said(file: Mapping[str, Any]) -> dict[str, Any]:
    found = file.get("quantization")
    return dict(found) if isinstance(found, Mapping) else {}


def _compare_files(folder: CheckpointFolder, said: Mapping[str, Any], findings: Findings) -> None:
    """Servers follow one of the two files; both have to say the same."""
    if folder.modelopt is None:
        findings.add(
            "configuration-incomplete",
            MODELOPT_FILE,
            expected="the file, which older readers follow",
            given="none",
            fix="export it again",
        )
        return
    other = _said(folder.modelopt)
    pairs: dict[str, tuple[object, object]] = {
        "quant_algo": (other.get("quant_algo"), said.get("quant_algo")),
        "ignored modules": (
            _set(other.get("exclude_modules")),
            _set(said.get("ignore") or said.get("exclude_modules")),
        ),
        "quantized_layers": (
            _algorithms(other.get("quantized_layers")),
            _algorithms(said.get("quantized_layers")),
        ),
        "cache": (
            bool(other.get("kv_cache_quant_algo")),
            bool(said.get("kv_cache_scheme") or said.get("kv_cache_quant_algo")),
        ),
    }
    for key, (there, here) in pairs.items():
        if there != here:
            findings.add(
                "configurations-differ",
                f"{key} in {MODELOPT_FILE}",
                expected=f"what config.json says: {here}",
                given=there,
                fix="export it again",
            )


def _set(names: Iterable[str] | None) -> list[str]:
    return sorted(set(names or ()))


def _algorithms(layers: Mapping[str, Mapping[str, Any]] | None) -> dict[str, str]:
    return {name: str(layer.get("quant_algo")) for name, layer in (layers or {}).items()}
