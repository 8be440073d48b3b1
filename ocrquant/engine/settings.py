"""How a checkpoint is to be served: what a person may ask for, and whether it is in range.

Knows names and bounds; opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from ocrquant.engine.config import Policy
from ocrquant.errors import EngineError
from ocrquant.models.layers.linear import Activations

__all__ = ["DTYPES", "RuntimeSettings", "Speculation", "StateKind", "refused"]

Speculation = Literal["off", "ngram", "drafter"]
"""What guesses tokens."""

StateKind = Literal["native", "replay", "snapshot"]
"""How recurrent states are kept: as they are, with what is accepted of guesses done again; as a checkpoint
with records (ReplaySSM); or as they are, with a state more for each guess."""

DTYPES: Mapping[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
"""Dtypes of activations by name. Native kernels compute in bf16; the others run the references."""

_COUNTS = ("max_requests", "max_length", "max_step_tokens", "page_size", "num_pages", "queue_limit", "window")
_CHOICES = {
    "activations": Activations,
    "state": StateKind,
    "policy": Policy,
    "speculation": Speculation,
}
_OPTIONAL = frozenset({"max_length", "max_step_tokens", "num_pages", "window"})
_MOST = 2**31 - 1  # what an int32 of a step can say


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """How to serve a checkpoint.

    Attributes:
        max_requests: Most pages that are read at once.
        max_length: Longest sequence in tokens, page and answer together; None: what the model takes, at most
            4096.
        max_step_tokens: Most rows of a step; None: 512, or one a request where that is more.
        dtype: Of activations, a key of `DTYPES`.
        device: ``cpu`` or ``cuda:N``.
        activations: ``quantized`` as each linear's scheme asks, or ``plain``: weights alone are quantized.
        state: How recurrent states are kept.
        page_size: Tokens in a page of keys and values.
        num_pages: Pages of keys and values; None: enough for all requests at full length.
        prefix_cache_bytes: Memory for kept prefixes; 0 keeps none.
        policy: Which waiting page enters first.
        queue_limit: Most waiting pages.
        prompts: Instructions by kind of page in place of the model's own.
        speculation: What guesses tokens for the model to verify, several a step: ``ngram``, what followed the
            last tokens of the answer when they came before; ``drafter``, a model trained for this one; or
            nothing. Answers are the same; with the state ``replay`` up to its rounding, which depends on
            where records are folded, so that of two nearly equal logits the other one may win.
        drafter: Folder of the drafter; exactly with ``drafter``.
        window: Rows of a page in a step with guesses: its last token and guesses behind it. None: with a
            drafter what measured acceptance and times make best, up to its block; else up to 8.

    Raises:
        EngineError: A setting is out of range; names it.
    """

    max_requests: int = 8
    max_length: int | None = None
    max_step_tokens: int | None = None
    dtype: str = "bf16"
    device: str = "cpu"
    activations: Activations = "quantized"
    state: StateKind = "native"
    page_size: int = 16
    num_pages: int | None = None
    prefix_cache_bytes: int = 0
    policy: Policy = "fcfs"
    queue_limit: int = 1024
    prompts: Mapping[str, str] | None = None
    speculation: Speculation = "off"
    drafter: Path | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            is_default = value is None and name in _OPTIONAL
            if not is_default and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise refused(name, "a whole number of at least 1", value)
            if not is_default and value > _MOST:
                raise refused(name, f"at most {_MOST}", value)
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise refused(name, " or ".join(get_args(allowed)), value)
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise refused("dtype", f"one of {', '.join(DTYPES)}", self.dtype)
        if (self.speculation == "drafter") != (self.drafter is not None):
            raise refused("drafter", "a folder exactly with speculation = drafter", self.drafter)


def refused(name: str, expected: str, given: object) -> EngineError:
    """The error for a setting that is out of range or does not suit another."""
    return EngineError(f"engine.{name}", expected=expected, given=given, fix="correct the setting")
