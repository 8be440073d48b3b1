"""The tables of the README say what the code does."""

import re
from pathlib import Path

from ocrquant import errors
from ocrquant.env import VARIABLES

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def rows(pattern: str) -> list[tuple[str, str]]:
    return re.findall(rf"^\| {pattern} \| (.+) \|$", README, re.MULTILINE)


def test_every_exit_code_is_listed_once():
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.OcrQuantError)]
    codes = {kind.exit_code for kind in kinds if kind is not errors.OcrQuantError}
    listed = [int(code) for code, _ in rows(r"(\d+)")]
    assert listed == sorted({0} | codes)


def test_every_variable_is_listed_with_its_purpose():
    assert dict(rows(r"`(OCRQUANT_\w+)`")) == {name: v.purpose for name, v in VARIABLES.items()}
