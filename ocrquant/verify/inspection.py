"""What is in a checkpoint and what will run where: kinds of linears, schemes, bits, bytes, machines.

Knows headers, configurations and the stated abilities of machines. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ocrquant.cost import TARGETS
from ocrquant.errors import ModelError
from ocrquant.verify.declaration import read_declaration
from ocrquant.verify.findings import Findings
from ocrquant.verify.folder import CheckpointFolder
from ocrquant.verify.linears import Linears, StoredLinear, read_linears
from ocrquant.verify.plan_checks import weight_bytes
from ocrquant.verify.schemes import Scheme

__all__ = ["Inspection", "KindRow", "MachineRow", "inspect_checkpoint"]

_GPUS = tuple(name for name in TARGETS if name != "cpu")
_PLAIN = "unquantized"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """Linears of one kind and one scheme.

    Attributes:
        kind: Role in the model, such as ``mlp.down``; ``vision`` and ``draft`` for those sides.
        scheme: How they are stored.
        num_linears: How many.
        num_weights: Their elements.
        num_bytes: Bytes of their weights, scales included.
    """

    kind: str
    scheme: str
    num_linears: int
    num_weights: int
    num_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight takes, scales included."""
        return 8 * self.num_bytes / self.num_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """What a machine does with a scheme.

    Attributes:
        scheme: How linears are stored.
        machine: Name of the machine.
        arithmetic: What their products are computed in.
    """

    scheme: str
    machine: str
    arithmetic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Everything about a checkpoint that its headers say.

    Attributes:
        folder: The checkpoint.
        facts: Format, cache and sizes, in words.
        kinds: Its linears, in the order of the forward pass.
        machines: What runs where.
    """

    folder: str
    facts: Mapping[str, str]
    kinds: tuple[KindRow, ...]
    machines: tuple[MachineRow, ...]

    def to_json(self) -> dict[str, object]:
        """Everything, as JSON values."""
        kinds = [{**asdict(row), "bits_per_weight": row.bits_per_weight} for row in self.kinds]
        machines = [asdict(row) for row in self.machines]
        return {"checkpoint": self.folder, "facts": dict(self.facts), "kinds": kinds, "machines": machines}

    def render(self) -> str:
        """Tables for people."""
        kinds = [
            (
                r.kind,
                r.scheme,
                str(r.num_linears),
                str(r.num_weights),
                f"{r.bits_per_weight:.2f}",
                str(r.num_bytes),
            )
            for r in self.kinds
        ]
        schemes = list(dict.fromkeys(row.scheme for row in self.machines))
        found = {(row.scheme, row.machine): row.arithmetic for row in self.machines}
        machines = [(scheme, *(found[scheme, gpu] for gpu in _GPUS)) for scheme in schemes]
        lines = [self.folder, *(f"  {name}: {value}" for name, value in self.facts.items()), ""]
        lines += _table(("kind", "scheme", "linears", "weights", "bits", "bytes"), kinds)
        if machines:
            lines += ["", "products are computed in", *_table(("scheme", *_GPUS), machines)]
        return "\n".join(lines)


def inspect_checkpoint(path: Path) -> Inspection:
    """Looks into a checkpoint.

    Args:
        path: Folder in the format of compressed-tensors or ModelOpt, or one that is not quantized.

    Raises:
        ModelError: It is no checkpoint, one in a format that is not known here, or a file of it is damaged.
    """
    findings = Findings(str(path))
    with CheckpointFolder(path, findings) as folder:
        _refuse_damage(findings)
        declaration = read_declaration(folder, findings)
        linears = read_linears(folder, declaration)
        kinds = _kinds(folder, linears)
        total = sum(row.num_weights for row in kinds)
        bits = 8 * sum(row.num_bytes for row in kinds) / total if total else 0.0
        facts = {
            "format": declaration.method if declaration else "none",
            "cache": (declaration.cache if declaration else None) or "bf16",
            "tensors": f"{len(folder.tensors)}, {folder.num_bytes} bytes",
            "bits per weight of all linears": f"{bits:.2f}",
        }
    schemes = {
        scheme.name: scheme for item in linears.items.values() if (scheme := _scheme(item)) is not None
    }
    return Inspection(
        folder=str(path),
        facts=facts,
        kinds=kinds,
        machines=tuple(
            MachineRow(scheme=name, machine=gpu, arithmetic=_arithmetic(scheme, gpu))
            for name, scheme in schemes.items()
            for gpu in _GPUS
        ),
    )


def _refuse_damage(findings: Findings) -> None:
    """A table of what is left of a checkpoint would look like one of the whole."""
    for finding in findings.items:
        if finding.code in ("shard-missing", "shard-damaged"):
            raise ModelError(finding.what, expected=finding.expected, given=finding.given, fix=finding.fix)


def _scheme(linear: StoredLinear) -> Scheme | None:
    return linear.declared.scheme if linear.stored and linear.declared else None


def _kinds(folder: CheckpointFolder, linears: Linears) -> tuple[KindRow, ...]:
    groups = {} if linears.model_map is None else linears.model_map.group_of()
    sums: dict[tuple[str, str], list[int]] = {}
    for name, linear in linears.items.items():
        side = linear.side if linear.side != "decoder" else "other"
        kind = groups[name].kind if name in groups else side
        scheme = _scheme(linear)
        row = sums.setdefault((kind, scheme.name if scheme else str(linear.stored or _PLAIN)), [0, 0, 0])
        counted = (1, linear.shape[0] * linear.shape[1], weight_bytes(folder, linears, name))
        row[:] = [before + more for before, more in zip(row, counted, strict=True)]
    return tuple(
        KindRow(kind=kind, scheme=scheme, num_linears=n, num_weights=weights, num_bytes=size)
        for (kind, scheme), (n, weights, size) in sums.items()
    )


def _arithmetic(scheme: Scheme, machine: str) -> str:
    """What a product is computed in; a format that the machine lacks saves bytes and no arithmetic."""
    if scheme.weights_only:
        return "bf16, weights decoded"
    is_native = scheme.precision in TARGETS[machine].flop_per_s
    return str(scheme.precision) if is_native else "bf16, weights decoded"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
