"""What computed each arm, as a sentence and a table: nothing that was asked for is left out in silence.

Knows the records of the runtime. Knows no markup.
"""

from __future__ import annotations

from ocrquant.artifacts import LinearsRecord, Report
from ocrquant.evaluate.tables import Table
from ocrquant.evaluate.words import ARM_NAMES, PRECISION_NAMES
from ocrquant.formats import Precision

__all__ = ["runtime_lead", "runtime_table"]

_RUNTIME_LEAD = (
    "All texts and logits come from ocrquant's own runtime. It keeps weights packed, quantizes activations "
    "as each linear's scheme asks, and reads the plan from the exported folder, as any server does."
)
_SIMULATED_LEAD = (
    "ocrquant's own runtime does not run this architecture. All texts and logits come from the model's "
    "modules in transformers, with weights and activations of quantized linears rounded in them; the plan's "
    "weights are those of the exported folder. Speeds of such arms say nothing of a server."
)
_KERNELS = {
    "native": "native",
    "reference": "reference",
    "mixed": "native and reference",
    "simulated": "transformers, simulated",
}
_PLAIN = "plain"


def runtime_lead(report: Report) -> str:
    """What all arms ran on, in a sentence or two."""
    is_simulated = any(ran.kernels == "simulated" for ran in report.runtimes.values())
    return _SIMULATED_LEAD if is_simulated else _RUNTIME_LEAD


def runtime_table(report: Report) -> Table:
    """One row an arm: its linears, its caches, and what they ran on."""
    rows = []
    for name, ran in report.runtimes.items():
        linears = "; ".join(_linears(record) for record in ran.linears)
        cache = PRECISION_NAMES[Precision.FP8] if ran.kv_cache == Precision.FP8 else ran.kv_cache
        rows.append((ARM_NAMES[name], linears, cache, ran.dtype, _KERNELS[ran.kernels], ran.device))
    header = ("", "Linears", "Keys and values", "Other activations", "Kernels", "Device")
    return Table(header, tuple(rows), len(header))


def _linears(record: LinearsRecord) -> str:
    text = f"{record.count} {PRECISION_NAMES[record.stored]}"
    if record.reads == record.asked:
        return text if record.reads == _PLAIN else f"{text} (activations {record.reads})"
    return f"{text} (activations {record.reads}, not {record.asked} as asked)"
