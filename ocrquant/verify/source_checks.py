"""A checkpoint against the model that it was made from: files, tensors that no plan touches, and weights.

Where a norm was changed, what the norm multiplies by is counted into the weights that read it, so that a fold
(x / s with W * s) that was not undone shows as an error of the weight. Reads one weight at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ocrquant.checkpoint import CheckpointReader
from ocrquant.checkpoint.writer import other_files
from ocrquant.formats import Precision
from ocrquant.verify.findings import Findings
from ocrquant.verify.folder import CheckpointFolder
from ocrquant.verify.linears import CACHE_NAMES, Linears, StoredLinear
from ocrquant.verify.schemes import PART_NAMES

__all__ = ["ERROR_LIMITS", "WeightError", "check_files", "check_weights"]

ERROR_LIMITS: Mapping[Precision, float] = {
    Precision.BF16: 2.0**-7,
    Precision.FP8: 0.06,
    Precision.NVFP4: 0.25,
}
"""Largest relative error ||decoded - source|| / ||source|| that rounding explains.

Rounding to nearest gives 2.7 % in E4M3 and 9.5 % in NVFP4 for normal weights; GPTQ and outliers give up to
about twice that. A global scale that was not inverted gives 1e9, swapped nibbles more than 1, and a scale of
the fused neighbour that is 12 % off 15 %. BF16 is what a fold costs that rounds twice.
"""

_PIECE_ELEMENTS = 1 << 22
_MODEL_FILES = ("tokenizer", "processor", "preprocessor", "chat_template", "vocab", "merges", "added_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightError:
    """How far a weight is from its source.

    Attributes:
        linear: Its name.
        stored: Its precision.
        relative: ||decoded - source|| / ||source||, both as seen from before the norm.
        vanished: Rows that are zero now and were not.
        not_finite: Elements that are no finite numbers.
    """

    linear: str
    stored: Precision
    relative: float
    vanished: int
    not_finite: int


def check_files(folder: Path, source: Path, findings: Findings) -> None:
    """Every other file of the source is there with the same bytes."""
    for name in other_files(source):
        path = folder / name
        if not path.is_file():
            findings.add(
                "file-missing",
                name,
                expected="the file of the source",
                given="none",
                fix="copy it from there",
            )
        elif (before := (source / name).read_bytes()) != (after := path.read_bytes()):
            is_same = name.suffix == ".json" and _equal_json(before, after)
            matters = any(name.name.startswith(word) for word in _MODEL_FILES)
            code = "file-changed" if matters and not is_same else "file-written-anew"
            findings.add(
                code,
                name,
                expected="the bytes of the source",
                given="equal JSON in other bytes" if is_same else "another content",
                fix="copy it from the source",
            )


def _equal_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def check_weights(
    folder: CheckpointFolder, linears: Linears, source: CheckpointReader, findings: Findings
) -> list[WeightError]:
    """Every tensor of the source against what is stored.

    Returns:
        The error of every linear that is not the source's to the last bit.
    """
    norms = _Norms(folder, linears, source)
    errors = []
    names = _compared_names(folder, source)
    for name in names:
        module, _, part = name.rpartition(".")
        linear = linears.items.get(module)
        is_coded = linear is not None and linear.stored is not None and part == "weight"
        if not is_coded and name not in folder.tensors:
            findings.add(
                "source-tensor-missing", name, expected="the tensor", given="none", fix="export it again"
            )
        elif linear is not None and part == "weight" and (is_coded or norms.reads_changed(module)):
            if (error := _weight_error(folder, linear, source, norms, findings)) is not None:
                errors.append(error)
        elif module not in norms.changed and not _equal(folder.read(name), source.read(name)):
            findings.add(
                "untouched-changed", name, expected="the tensor of the source", given="another", fix="copy it"
            )
    for name in sorted(set(folder.tensors) - set(names)):
        module, _, part = name.rpartition(".")
        is_part = part in PART_NAMES | {*CACHE_NAMES, "weight"} and (
            module in linears.items or part in CACHE_NAMES
        )
        if not is_part:
            findings.add("tensor-added", name, expected="none", given="a tensor", fix="export it again")
    return errors


def _compared_names(folder: CheckpointFolder, source: CheckpointReader) -> list[str]:
    """Tensors of the source; one that holds all experts of a layer is taken apart where the folder did so."""
    apart: dict[str, list[str]] = {}
    for name, weight in source.stacked.items():
        if weight.stack not in folder.tensors:
            apart.setdefault(weight.stack, []).append(name)
    return [name for spec in source.specs for name in apart.get(spec, [spec])]


def _equal(one: Tensor, other: Tensor) -> bool:
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and torch.equal(
        one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)
    )


class _Norms:
    """Which norms multiply by something else than in the source, and what that means for their readers."""

    def __init__(self, folder: CheckpointFolder, linears: Linears, source: CheckpointReader) -> None:
        self.changed: set[str] = set()
        self._ratios: dict[str, Tensor] = {}
        for fold in linears.model_map.norm_folds if linears.model_map else ():
            name = f"{fold.norm}.weight"
            if name not in folder.tensors or name not in source.specs:
                continue
            after, before = folder.read(name).float(), source.read(name).float()
            if after.shape != before.shape or torch.equal(after, before):
                continue
            self.changed.add(fold.norm)
            offset = 1.0 if fold.offset else 0.0
            ratio = (after + offset) / (before + offset)
            # A channel that was switched off stays so, whatever its weights are.
            ratio[before + offset == 0] = 0.0
            self._ratios |= dict.fromkeys(fold.linears, ratio)

    def reads_changed(self, linear: str) -> bool:
        """Whether a linear reads a norm that was changed."""
        return linear in self._ratios

    def ratio(self, linear: str) -> Tensor | None:
        """What each input channel is multiplied by, compared with the source: float32 [in], or None."""
        return self._ratios.get(linear)


def _weight_error(
    folder: CheckpointFolder,
    linear: StoredLinear,
    source: CheckpointReader,
    norms: _Norms,
    findings: Findings,
) -> WeightError | None:
    scheme = linear.declared.scheme if linear.declared else None
    if linear.stored and scheme is None:
        return None
    names = [f"{linear.name}.{part.name}" for part in scheme.parts] if linear.stored and scheme else []
    required = [n for n in names if scheme is not None and n.rpartition(".")[2] not in scheme.optional]
    if any(name not in folder.tensors for name in required):
        return None  # reported as missing already
    wanted = source.read(f"{linear.name}.weight")
    if wanted.shape != torch.Size(linear.shape):
        findings.add(
            "tensor-shape",
            linear.name,
            expected=f"{list(wanted.shape)}, as in the source",
            given=list(linear.shape),
            fix="export it again",
        )
        return None
    if linear.stored and scheme is not None:
        parts = {n.rpartition(".")[2]: folder.read(n) for n in names if n in folder.tensors}
        decoded = scheme.decode(parts)
    else:
        decoded = folder.read(f"{linear.name}.weight")
    error = _compare(linear, decoded, wanted, norms.ratio(linear.name))
    _judge(error, findings)
    return error


def _compare(linear: StoredLinear, decoded: Tensor, wanted: Tensor, ratio: Tensor | None) -> WeightError:
    difference = norm = 0.0
    vanished = not_finite = 0
    rows = max(1, _PIECE_ELEMENTS // max(1, wanted.shape[1]))
    for now, before in zip(decoded.split(rows), wanted.split(rows), strict=True):
        now, before = now.double(), before.double()
        bad = ~torch.isfinite(now)
        not_finite += int(bad.sum())
        vanished += int(((now == 0).all(1) & (before != 0).any(1)).sum())
        if ratio is not None:
            now = now * ratio.double()
        difference += float((now - before).square().sum())
        norm += float(before.square().sum())
    relative = 0.0 if difference == 0 else (difference / norm) ** 0.5 if norm else float("inf")
    return WeightError(
        linear=linear.name,
        stored=linear.stored or Precision.BF16,
        relative=relative,
        vanished=vanished,
        not_finite=not_finite,
    )


def _judge(error: WeightError, findings: Findings) -> None:
    limit = ERROR_LIMITS[error.stored]
    rows: Iterator[tuple[bool, str, str, str]] = iter(
        (
            (error.not_finite > 0, "codes-not-finite", "finite numbers", f"{error.not_finite} that are not"),
            (
                error.vanished > 0,
                "rows-vanished",
                "a row of zeros only where the source has one",
                f"{error.vanished} more",
            ),
            (
                not error.not_finite and not error.relative <= limit,
                "error-too-large",
                f"a relative error up to {limit:g} in {error.stored}",
                f"{error.relative:.3g}",
            ),
        )
    )
    for is_bad, code, expected, given in rows:
        if is_bad:
            findings.add(code, error.linear, expected=expected, given=given, fix="quantize this linear again")
