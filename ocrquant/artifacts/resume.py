"""Resuming inside a long stage: a journal of finished steps and a store of tensors, deleted at its end.

Knows how to survive a kill at any byte. Does not know what a step is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrquant.artifacts.atomic import output_error, write_bytes, write_tensors
from ocrquant.artifacts.digests import sha256_data
from ocrquant.errors import ArtifactError

if TYPE_CHECKING:
    import torch

__all__ = ["Journal", "PartialStage"]


class Journal:
    """An append-only file of JSON records, one a line.

    A kill in the middle of an append leaves a torn last line; reading discards it and the next append cuts it
    off.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """All complete records, oldest first.

        Raises:
            ArtifactError: A complete line is malformed.
        """
        return self._scan()[0]

    def append(self, record: Mapping[str, object]) -> None:
        """Adds a record; when this returns, it is on the disk.

        Raises:
            OutputError: The file cannot be written or the disk is full. The journal is then as before.
            ArtifactError: A complete line is malformed.
        """
        line = (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode()
        num_bytes = self._scan()[1] if self._is_torn() else None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                if num_bytes is not None:
                    file.truncate(num_bytes)
                begin = file.seek(0, os.SEEK_END)
                try:
                    _write_all(file.fileno(), line)
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(begin)
                    raise
        except OSError as error:
            raise output_error(self._path, error) from error

    def _is_torn(self) -> bool:
        """Whether the file ends in the middle of a line; only the last byte is read."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) == 0:
                    return False
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except FileNotFoundError:
            return False

    def _scan(self) -> tuple[list[dict[str, Any]], int]:
        """The complete records and how many bytes they take."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise ArtifactError(self._path, expected="a readable journal", given=error.strerror) from error
        *lines, torn = data.split(b"\n")
        try:
            return [json.loads(line) for line in lines], len(data) - len(torn)
        except ValueError as error:
            fix = "delete the file and run the command again"
            raise ArtifactError(self._path, expected="a JSON record a line", given=error, fix=fix) from error


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class PartialStage:
    """What a stage has done so far, valid for one set of inputs.

    Args:
        folder: Folder of the stage's own; what it holds for other inputs is deleted.
        inputs: SHA-256 of everything that the stage is made from, by name.

    Raises:
        OutputError: The folder is not writable.
    """

    def __init__(self, folder: Path, inputs: Mapping[str, str]) -> None:
        self._folder = folder
        key, key_file = sha256_data(dict(inputs)), folder / "inputs.sha256"
        if not (key_file.is_file() and key_file.read_text(encoding="utf-8") == key):
            self.discard()
            write_bytes(key_file, key.encode())

    def journal(self, name: str) -> Journal:
        """The journal of that name."""
        return Journal(self._folder / f"{name}.jsonl")

    def journals(self, prefix: str) -> list[Journal]:
        """The journals whose names begin so, in the order of their names."""
        return [Journal(path) for path in sorted(self._folder.glob(f"{prefix}*.jsonl"))]

    def write(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Stores tensors under a name, in place of what that name held; atomic.

        Raises:
            OutputError: The folder is not writable or the disk is full.
        """
        write_tensors(self._folder / f"{name}.safetensors", tensors)

    def read(self, name: str) -> dict[str, torch.Tensor] | None:
        """The tensors stored under a name, or None."""
        from safetensors.torch import load_file  # imports torch

        path = self._folder / f"{name}.safetensors"
        return load_file(path) if path.is_file() else None

    def has(self, name: str) -> bool:
        """Whether a name holds tensors."""
        return (self._folder / f"{name}.safetensors").is_file()

    def remove(self, name: str) -> None:
        """Forgets what a name holds, if anything.

        Raises:
            OutputError: The file cannot be deleted.
        """
        path = self._folder / f"{name}.safetensors"
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise output_error(path, error) from error

    def names(self) -> list[str]:
        """Names that hold tensors, sorted."""
        return sorted(path.stem for path in self._folder.glob("*.safetensors"))

    def discard(self) -> None:
        """Deletes everything, as a stage does once its artefact is written.

        Raises:
            OutputError: A file cannot be deleted.
        """
        try:
            shutil.rmtree(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise output_error(self._folder, error) from error
