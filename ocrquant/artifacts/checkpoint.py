"""``checkpoint.json``: what the exported folder holds.

It lies outside the folder, which stays an ordinary checkpoint. Knows file names, sizes and digests; knows
nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ocrquant.artifacts.base import Artifact, FileRecord

__all__ = ["CheckpointRecord"]


class CheckpointRecord(Artifact):
    """The exported checkpoint.

    Attributes:
        folder: Folder of the checkpoint, relative to the run folder.
        format: On-disk format.
        bits_per_weight: Of the searched linears as written.
        weight_bytes: Bytes of the searched linears as written, scales included.
        contents: Every file, by its path relative to `folder`.
    """

    FILE_NAME: ClassVar[str] = "checkpoint.json"
    STAGE: ClassVar[str] = "export"

    folder: str
    format: str
    bits_per_weight: float = Field(gt=0)
    weight_bytes: int = Field(gt=0)
    contents: dict[str, FileRecord] = Field(min_length=1)

    def files(self) -> Mapping[str, FileRecord]:
        """Every file of the checkpoint, relative to the run folder."""
        return {f"{self.folder}/{name}": record for name, record in self.contents.items()}

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole folder."""
        return sum(record.num_bytes for record in self.contents.values())

    @staticmethod
    def scan(folder: Path) -> dict[str, FileRecord]:
        """Measures every file of a folder, in order of their names.

        Raises:
            ArtifactError: A file cannot be read.
        """
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): FileRecord.of(path) for path in files}
