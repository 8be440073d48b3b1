from collections.abc import Iterator
from pathlib import Path

import pytest

from ocrquant.artifacts import RunFolder
from tests.evaluate.making import ZERO


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """An empty run folder."""
    text = "model: {path: pico}\n"
    with RunFolder.open(tmp_path / "run", recipe_digest=ZERO, recipe_text=text) as opened:
        yield opened
