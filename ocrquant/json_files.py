"""JSON files of a model folder, read with errors that name the file.

Knows JSON; does not know what any file is for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ocrquant.errors import ModelError

__all__ = ["read_json"]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: The file is missing, unreadable or holds no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        fix = "give the folder of a complete Hugging Face model"
        raise ModelError(path.parent, expected=path.name, given="no such file", fix=fix) from error
    except (OSError, ValueError) as error:
        raise ModelError(path, expected="a JSON object", given=error, fix="fetch the file again") from error
    if not isinstance(value, dict):
        raise ModelError(
            path, expected="a JSON object", given=type(value).__name__, fix="fetch the file again"
        )
    return value
