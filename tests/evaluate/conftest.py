from collections.abc import Iterator
from pathlib import Path

import pytest

from ocrquant.artifacts import RunFolder
from tests.evaluate.making import RECIPE, ZERO


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """An empty run folder."""
    with RunFolder.open(tmp_path / "run", recipe_digest=ZERO, recipe_text=RECIPE) as opened:
        yield opened
