"""Optional packages, loaded where they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ocrquant.errors import RecipeError

__all__ = ["load_toolkit"]


def load_toolkit(module: str, package: str, asked_by: str) -> Any:
    """A module of another toolkit.

    Args:
        module: Its name.
        package: What has to be installed for it.
        asked_by: The key or command that needs it.

    Raises:
        RecipeError: It is not installed, or cannot be loaded.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise RecipeError(
            asked_by,
            expected=f"the package {package}",
            given=error,
            fix="install it: pip install 'ocrquant[toolkits]'",
        ) from error
