"""A finished checkpoint as a server will see it: what is declared, what is stored, how names are matched.

Knows checkpoints in the formats of compressed-tensors and ModelOpt, whoever wrote them. Loads no model: who
wants logits compared hands them in.
"""

from __future__ import annotations

from ocrquant.verify.findings import CODES, Code, Finding, Findings, Severity
from ocrquant.verify.inspection import Inspection, inspect_checkpoint
from ocrquant.verify.verify import verify_checkpoint

__all__ = [
    "CODES",
    "Code",
    "Finding",
    "Findings",
    "Inspection",
    "Severity",
    "inspect_checkpoint",
    "verify_checkpoint",
]
