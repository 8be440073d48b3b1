"""Folders of tiny models, made once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.families.making import make_folder


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from the name of a family to its folder; do not write into it."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_folder(name, tmp_path_factory.mktemp(name) / "model")
        return made[name]

    return folder
