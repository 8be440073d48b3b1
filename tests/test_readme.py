"""The tables of the README say what the code does."""

import ast
import re
from pathlib import Path

from typer.main import get_command

from ocrquant import errors
from ocrquant.cli import app
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


def test_python_blocks_import_what_is_there():
    blocks = re.findall(r"^```python\n(.+?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        imports = [n for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), "README.md", "exec"), {})


def test_options_of_run_are_those_of_the_command():
    section = README.split("## Reading pages")[1].split("\n## ")[0]
    named = set(re.findall(r"`(--[a-z-]+)`", section))
    command = get_command(app).commands["run"]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert len(named) >= 10
    assert named <= known
