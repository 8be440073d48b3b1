"""SHA-256 of files, folders and plain data: how an artefact says what it was made from.

Knows bytes. Does not know which inputs a stage has.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from ocrquant.artifacts.atomic import write_bytes
from ocrquant.errors import ArtifactError

__all__ = ["DigestCache", "sha256_bytes", "sha256_data", "sha256_file"]

_CHUNK_BYTES = 1 << 20


def sha256_bytes(data: bytes) -> str:
    """Returns the digest as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_data(value: object) -> str:
    """Digest of plain data (what JSON can hold); the order of mapping keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return sha256_bytes(text.encode())


def sha256_file(path: Path) -> str:
    """Digest of a file's bytes.

    Raises:
        ArtifactError: The file cannot be read.
    """
    state = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                state.update(chunk)
    except OSError as error:
        raise ArtifactError(path, expected="a readable file", given=error.strerror) from error
    return state.hexdigest()


class DigestCache:
    """Digests of large files, remembered by size and time of change so that a skipped stage costs no reading.

    The cache is a convenience and not an artefact: without it every digest is computed anew.

    Args:
        path: File that keeps the digests; made when the first one is stored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, list[object]] = {}
        try:
            loaded = json.loads(path.read_bytes())
        except (OSError, ValueError):
            loaded = {}
        if isinstance(loaded, dict):
            self._entries = loaded

    def file(self, path: Path) -> str:
        """Digest of one file.

        Raises:
            ArtifactError: The file cannot be read.
        """
        return self._files([path])[0]

    def folder(self, path: Path) -> str:
        """Digest of the names and bytes of all files below a folder, hidden ones left out.

        Raises:
            ArtifactError: The folder is missing, or a file in it cannot be read.
        """
        if not path.is_dir():
            raise ArtifactError(path, expected="a folder", given="nothing" if not path.exists() else "a file")
        files = [f for f in sorted(path.rglob("*")) if f.is_file() and not _is_hidden(f.relative_to(path))]
        digests = self._files(files)
        names = [file.relative_to(path).as_posix() for file in files]
        return sha256_data([list(pair) for pair in zip(names, digests, strict=True)])

    def _files(self, paths: Iterable[Path]) -> list[str]:
        digests, is_changed = [], False
        for path in paths:
            key, stamp = os.path.realpath(path), _stamp(path)
            entry = self._entries.get(key)
            if not (isinstance(entry, list) and len(entry) == 2 and entry[0] == stamp):
                entry = self._entries[key] = [stamp, sha256_file(path)]
                is_changed = True
            digests.append(str(entry[1]))
        if is_changed:
            write_bytes(self._path, json.dumps(self._entries, sort_keys=True, indent=0).encode())
        return digests


def _stamp(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ArtifactError(path, expected="a readable file", given=error.strerror) from error
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
