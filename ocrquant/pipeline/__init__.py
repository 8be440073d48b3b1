"""The stages in their order: what each reads, what it depends on, and how a run goes through them.

Knows every stage by its one function. Holds no arithmetic of its own.
"""

from __future__ import annotations

from ocrquant.pipeline.check import check_recipe
from ocrquant.pipeline.run import run_recipe
from ocrquant.pipeline.stages import STAGE_NAMES

__all__ = ["STAGE_NAMES", "check_recipe", "run_recipe"]
