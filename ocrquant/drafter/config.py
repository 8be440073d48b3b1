"""What a drafter is; the runtime reads it too, so it lies with the models."""

from __future__ import annotations

from ocrquant.models.drafter.config import DFLASH, DFLASH2, DrafterConfig, default_taps

__all__ = ["DFLASH", "DFLASH2", "DrafterConfig", "default_taps"]
