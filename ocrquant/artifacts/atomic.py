"""Writes that are either complete or not there: temporary name in the same folder, fsync, rename.

Knows files and folders. Knows nothing of what they hold, except that tensors go through safetensors.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from ocrquant.errors import OutputError

if TYPE_CHECKING:
    import torch

__all__ = [
    "atomic_folder",
    "atomic_path",
    "output_error",
    "remove_temporaries",
    "write_bytes",
    "write_tensors",
]

_SUFFIX = ".part"

_FIXES = {
    errno.ENOSPC: "free some space or name another output folder",
    errno.EDQUOT: "free some of the quota or name another output folder",
    errno.EFBIG: "raise the limit on file sizes or name another output folder",
    errno.EACCES: "make the folder writable or name another one",
    errno.EPERM: "make the folder writable or name another one",
    errno.EROFS: "name an output folder on a writable file system",
    errno.ENOTDIR: "name an output folder whose parents are folders",
    errno.EEXIST: "name an output folder, not a file",
    errno.EISDIR: "remove the folder that lies where the file belongs",
}


def output_error(path: Path, error: Exception) -> OutputError:
    """Turns a failed write to `path` into an error with advice that suits its cause."""
    code = error.errno if isinstance(error, OSError) else None
    # safetensors writes in Rust and reports the cause in words only.
    text = os.strerror(code) if code else str(error)
    code = errno.ENOSPC if code is None and os.strerror(errno.ENOSPC) in text else code
    fix = _FIXES.get(code or 0, "name another output folder")
    return OutputError(path, expected="a file that can be written whole", given=text.lower(), fix=fix)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what was written there takes its place when the block succeeds.

    The folder is made where it is missing. If the block fails, the temporary file is removed and `path` is as
    before. An `OSError` inside the block counts as a failed write: turn errors of reading into the reader's
    own before.

    Raises:
        OutputError: The folder is not writable, the disk is full, or a parent is not a folder.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}{_SUFFIX}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise output_error(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields an empty temporary folder beside `path` that takes its place when the block succeeds.

    A folder that was at `path` is replaced as a whole, so no file of it survives.

    Raises:
        OutputError: The parent folder is not writable, the disk is full, or `path` is a file.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}{_SUFFIX}"
    replaced = path.parent / f".{path.name}.{os.getpid()}.old{_SUFFIX}"
    shutil.rmtree(temporary, ignore_errors=True)  # of a killed process that had the same number
    try:
        if path.exists() and not path.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        temporary.mkdir(parents=True)
        yield temporary
        for file in sorted(temporary.rglob("*")):
            _sync(file)
        _sync(temporary)
        if path.exists():
            os.rename(path, replaced)
        os.rename(temporary, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise output_error(path, error) from error
    finally:
        for leftover in (temporary, replaced):
            shutil.rmtree(leftover, ignore_errors=True)


def remove_temporaries(folder: Path) -> None:
    """Deletes what a killed process left half-written directly in a folder."""
    for path in folder.glob(f".*{_SUFFIX}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a whole file atomically.

    Raises:
        OutputError: As for `atomic_path`.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes a safetensors file atomically; equal tensors give equal bytes, in whatever order they come.

    No metadata is written: safetensors stores it in the order of a hash map, which differs from run to run.

    Raises:
        OutputError: As for `atomic_path`.
    """
    from safetensors.torch import save_file  # imports torch

    contiguous = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    with atomic_path(path) as temporary:
        save_file(contiguous, temporary)
        os.chmod(temporary, 0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
