"""``statistics.json`` and ``.safetensors``: what flowed through each linear on the calibration pages.

Knows quantities and their names. Does not know how they were observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FileRecord, FrozenModel

if TYPE_CHECKING:
    import pandas as pd
    import torch

__all__ = [
    "ExpertStatistics",
    "KvStatistics",
    "LinearStatistics",
    "PositionStatistics",
    "Positions",
    "Quantity",
    "Statistics",
    "tensor_name",
]

Positions = Literal["text", "image"]
Quantity = Literal["channel_amax", "second_moment"]


def tensor_name(linear: str, positions: Positions, quantity: Quantity) -> str:
    """Name of a tensor, fp32 ``[in_features]``, inside ``statistics.safetensors``.

    ``channel_amax`` is max |x| and ``second_moment`` the mean of x² of each input channel over the positions
    seen.
    """
    return f"{linear}:{positions}:{quantity}"


class PositionStatistics(FrozenModel):
    """What one kind of position showed at one linear's input.

    Attributes:
        num_tokens: Positions counted.
        amax: Largest |x|.
        outlier_ratio: amax of the largest channel over that of the median channel; 0 where the median is 0.
        dead_channels: Input channels that were zero at every position.
    """

    num_tokens: int = Field(ge=0)
    amax: float = Field(ge=0)
    outlier_ratio: float = Field(ge=0)
    dead_channels: list[int]


class LinearStatistics(FrozenModel):
    """One linear's input: positions of the answer and prompt (`text`), and those that hold image features."""

    name: str
    in_features: int = Field(gt=0)
    text: PositionStatistics
    image: PositionStatistics

    @property
    def amax(self) -> float:
        """Largest |x| over both kinds of positions."""
        return max(self.text.amax, self.image.amax)


class KvStatistics(FrozenModel):
    """What a full-attention layer wrote into its cache, after rotary embedding: largest |k| and |v|."""

    name: str
    k_amax: float = Field(ge=0)
    v_amax: float = Field(ge=0)
    num_tokens: int = Field(ge=0)


class ExpertStatistics(FrozenModel):
    """How many tokens each expert of a layer saw, by its number, over all calibration pages."""

    name: str
    num_tokens: list[int] = Field(min_length=1)

    @property
    def num_starved(self) -> int:
        """Experts that saw less than a tenth of the median expert's tokens."""
        median = sorted(self.num_tokens)[len(self.num_tokens) // 2]
        return sum(10 * count < median or count == 0 for count in self.num_tokens)


class Statistics(Artifact):
    """Statistics of all searched linears; per-channel tensors lie in a file beside it."""

    FILE_NAME: ClassVar[str] = "statistics.json"
    STAGE: ClassVar[str] = "statistics"
    TENSORS_NAME: ClassVar[str] = "statistics.safetensors"

    num_pages: int = Field(gt=0)
    tensors: FileRecord
    linears: list[LinearStatistics]
    kv: list[KvStatistics]
    experts: list[ExpertStatistics] = Field(default=[])

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({linear.name for linear in self.linears}) != len(self.linears):
            raise ValueError("a linear is listed twice")
        return self

    def files(self) -> Mapping[str, FileRecord]:
        """The file of tensors."""
        return {self.TENSORS_NAME: self.tensors}

    def load_tensors(self, folder: Path) -> dict[str, torch.Tensor]:
        """Reads the per-channel tensors; see `tensor_name`.

        Args:
            folder: The run folder.

        Raises:
            ArtifactError: The file is missing or is not the one that this artefact was written with.
        """
        from safetensors.torch import load_file  # imports torch

        return load_file(self.checked_file(folder, self.TENSORS_NAME))

    def to_frame(self) -> pd.DataFrame:
        """One row a linear and kind of position."""
        import pandas as pd

        rows = []
        for linear in self.linears:
            for positions in (linear.text, linear.image):
                kind = "text" if positions is linear.text else "image"
                row = positions.model_dump() | {"num_dead_channels": len(positions.dead_channels)}
                rows.append(
                    {"linear": linear.name, "positions": kind, "in_features": linear.in_features} | row
                )
        return pd.DataFrame(rows).drop(columns="dead_channels")
