"""Arms of a model that the package's own runtime runs: one engine an arm, made when its turn comes.

Knows engines and folders. Does not know what is made of the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial as bind
from pathlib import Path

import torch

from ocrquant.artifacts import ArmName, Rounding
from ocrquant.engine.loading import Runtime, RuntimeSettings, load_runtime
from ocrquant.evaluate.arms import ArmPlan, environment_digest, uniform_arm
from ocrquant.evaluate.readers import NamedMakers, Reader, RuntimeReader
from ocrquant.evaluate.truth import Tokens
from ocrquant.models.processing import open_processor

__all__ = ["RuntimeArms"]


@dataclass(frozen=True)
class RuntimeArms:
    """Where and how all arms run.

    Attributes:
        source: Folder of the unquantized model.
        device: Where they run.
        prompts: Instructions for some kinds of page.
        rounding: The rounded weights.
        run: The run folder that holds them and the checkpoint.
        tokens: Tokens of pages and answers.
    """

    source: Path
    device: torch.device
    prompts: Mapping[str, str]
    rounding: Rounding
    run: Path
    tokens: Tokens = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", open_processor(self.source, self.prompts))

    def environment(self, batch_size: int, longest: int) -> str:
        """SHA-256 of what decides how numbers are rounded."""
        return environment_digest(self._settings(batch_size, longest))

    def makers(self, plan: ArmPlan, batch_size: int, longest: int) -> NamedMakers:
        """What makes each arm when its turn comes."""
        settings = self._settings(batch_size, longest)
        made: dict[ArmName, Callable[[], Runtime]] = {
            "bf16": bind(load_runtime, self.source, settings),
            "plan": bind(load_runtime, self.run / plan.record.folder, settings),
        }
        for name, groups in plan.groups.items():
            if name != "bf16":
                made[name] = bind(
                    uniform_arm,
                    groups,
                    self.rounding,
                    self.run,
                    self.source,
                    settings,
                    has_fp8_cache=plan.has_fp8_cache,
                )
        return [(name, bind(self._reader, made[name])) for name in plan.names]

    def _reader(self, make: Callable[[], Runtime]) -> Reader:
        return RuntimeReader(make())

    def _settings(self, batch_size: int, longest: int) -> RuntimeSettings:
        """The same for every arm, so that their steps have the same sizes."""
        return RuntimeSettings(
            max_requests=batch_size,
            max_length=longest,
            device=str(self.device),
            queue_limit=batch_size,
            prompts=self.prompts,
        )
