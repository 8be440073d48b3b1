"""The runtime: a batched engine that serves a checkpoint.

Schedules requests, keeps their pages and state slots, and runs a model of ``ocrquant.models`` step by step.
Sees a checkpoint and nothing else: no recipe, no artefact of a calibration. Names are imported at their first
use, so that a worker process that prepares pages loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocrquant.engine.config import EngineConfig
    from ocrquant.engine.engine import Engine
    from ocrquant.engine.loading import Runtime, RuntimeSettings, load_runtime
    from ocrquant.engine.pages import page_prompt
    from ocrquant.engine.preparing import PageTask, default_workers
    from ocrquant.engine.prompt import Prompt, PromptImage, text_prompt
    from ocrquant.engine.request import DraftCounts, FinishReason, RequestOutput, RequestResult
    from ocrquant.engine.sampling import SamplingParams
    from ocrquant.engine.statistics import StepStatistics
    from ocrquant.engine.transcriber import PageResult, Transcriber

__all__ = [
    "DraftCounts",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "PageResult",
    "PageTask",
    "Prompt",
    "PromptImage",
    "RequestOutput",
    "RequestResult",
    "Runtime",
    "RuntimeSettings",
    "SamplingParams",
    "StepStatistics",
    "Transcriber",
    "default_workers",
    "load_runtime",
    "page_prompt",
    "text_prompt",
]

_HOMES = {
    "DraftCounts": "request",
    "Engine": "engine",
    "EngineConfig": "config",
    "FinishReason": "request",
    "PageResult": "transcriber",
    "PageTask": "preparing",
    "Prompt": "prompt",
    "PromptImage": "prompt",
    "RequestOutput": "request",
    "RequestResult": "request",
    "Runtime": "loading",
    "RuntimeSettings": "loading",
    "SamplingParams": "sampling",
    "StepStatistics": "statistics",
    "Transcriber": "transcriber",
    "default_workers": "preparing",
    "load_runtime": "loading",
    "page_prompt": "pages",
    "text_prompt": "prompt",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
