"""What the plan costs in accuracy: held-out pages through every arm, intervals, gate, report and pictures.

Knows how arms are run side by side, how their outputs are judged and how the result is shown. Does not know
how a plan was found or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ocrquant.evaluate.equivalence import equivalence_frame
from ocrquant.evaluate.gate import enforce_gate
from ocrquant.evaluate.report import write_report

if TYPE_CHECKING:
    from ocrquant.evaluate.stage import EvaluatedModel, evaluate_run

__all__ = ["EvaluatedModel", "enforce_gate", "equivalence_frame", "evaluate_run", "write_report"]


def __getattr__(name: str) -> Any:
    # The stage brings torch and transformers along; a report is shown without them.
    if name in ("EvaluatedModel", "evaluate_run"):
        from ocrquant.evaluate import stage

        return getattr(stage, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
