"""A folder for what a benchmark writes and deletes again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ocrquant.errors import OutputError

__all__ = ["scratch_folder"]


def scratch_folder(parent: Path) -> tempfile.TemporaryDirectory[str]:
    """A new folder that is deleted at the end of its ``with``.

    Args:
        parent: The setting ``scratch``.

    Raises:
        OutputError: There is no such folder.
    """
    if not parent.is_dir():
        raise OutputError("--set scratch", expected="a folder", given=parent, fix="make it")
    return tempfile.TemporaryDirectory(dir=parent, prefix="ocrquant-")
