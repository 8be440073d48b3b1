"""The output folder: a text file a page, an index of what each was made from, and the question what is done.

A page's text is written whole and then its line in the index, so that a kill loses at most the pages in
progress. Knows digests and files; knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from ocrquant.artifacts import Journal, sha256_data, sha256_file, write_bytes
from ocrquant.artifacts.atomic import output_error, remove_temporaries
from ocrquant.errors import ArtifactError, RunFolderError

__all__ = ["INDEX", "OutputFolder", "checkpoint_digest"]

INDEX = "index.jsonl"
_LOCK = ".lock"
_HASHED_BYTES = 64 << 20


class OutputFolder:
    """An output folder that is open for writing. Use as a context manager: leaving it gives the lock back.

    Attributes:
        path: The folder.

    Args:
        path: Made where it is missing.

    Raises:
        RunFolderError: A process is using it.
        OutputError: It is not writable.
        ArtifactError: Its index is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / _LOCK)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(blocking=False)
        except Timeout as error:
            fix = "wait for it or name another output folder"
            raise RunFolderError(path, given="a folder that another ocrquant is using", fix=fix) from error
        except OSError as error:
            raise output_error(path, error) from error
        try:
            self._journal = Journal(path / INDEX)
            self._records = {str(record.get("page")): record for record in self._journal.read()}
        except BaseException:
            self._lock.release()
            raise
        self._cleaned: set[Path] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def text_path(self, name: str) -> Path:
        """Where the text of a page lies."""
        return self.path / f"{name}.txt"

    def is_done(self, name: str, source: Path, settings: str) -> bool:
        """Whether the text of a page is there and was made from this very file with these settings.

        Args:
            name: Of the page.
            source: The file that holds its image.
            settings: Digest of everything else that its text depends on.
        """
        record = self._records.get(name)
        if record is None or record.get("settings") != settings or not self.text_path(name).is_file():
            return False
        stamp = _stamp(source)
        return stamp is not None and (
            record.get("stamp") == list(stamp) or record.get("input") == _digest(source, stamp)
        )

    def input_record(self, source: Path) -> dict[str, Any]:
        """What the index says of a file; to be taken before the file is read."""
        stamp = _stamp(source)
        return {"input": _digest(source, stamp), "stamp": stamp and list(stamp)}

    def write(self, name: str, text: str, record: Mapping[str, Any]) -> None:
        """Writes a text, then its line in the index.

        Raises:
            OutputError: The folder is not writable or the disk is full.
        """
        path = self.text_path(name)
        if path.parent not in self._cleaned:
            remove_temporaries(path.parent)
            self._cleaned.add(path.parent)
        if name in self._records:
            # A kill between the two writes must not leave this text under the line of the one before.
            self._note(name, {})
        write_bytes(path, f"{text}\n".encode() if text else b"")
        self._note(name, record)

    def drop(self, name: str) -> None:
        """Deletes a text that was made from something else than what can no longer be read."""
        if name not in self._records:
            return
        path = self.text_path(name)
        self._note(name, {})
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise output_error(path, error) from error

    def _note(self, name: str, record: Mapping[str, Any]) -> None:
        self._records[name] = {"page": name, **record}
        self._journal.append(self._records[name])


def checkpoint_digest(folder: Path) -> str:
    """Digest of a checkpoint's files: their content, and of very large ones the size and the time of change.

    Raises:
        ArtifactError: A file cannot be read.
    """
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            stamp = _stamp(path)
            is_small = stamp is None or stamp[0] <= _HASHED_BYTES
            found.append([path.name, sha256_file(path) if is_small else list(stamp or ())])
    return sha256_data(found)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Size and time of change; None for a file that is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=64)
def _digest(path: Path, stamp: tuple[int, int] | None) -> str | None:
    """Kept, because every page of a PDF asks for that of the whole file."""
    try:
        return sha256_file(path)
    except ArtifactError:
        return None  # Reading the page will say what is wrong.
