"""Small files, small functions, and the numbers of a format in one place only."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ocrquant"
MAX_FILE_LINES = 320
MAX_FUNCTION_LINES = 65
FORMAT_NUMBERS = {448, 2688}

FILES = sorted(PACKAGE.rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_lines(node: Function) -> int:
    """Lines of a function without its docstring, which may be as long as the contract needs."""
    total = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        total -= first.end_lineno - first.lineno + 1
    return total


def long_functions(source: str) -> list[tuple[str, int]]:
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    return [(f.name, function_lines(f)) for f in functions if function_lines(f) > MAX_FUNCTION_LINES]


def format_numbers(source: str) -> list[int]:
    """Lines with a number that belongs to a format."""
    constants = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [c.lineno for c in constants if isinstance(c.value, int | float) and c.value in FORMAT_NUMBERS]


def test_files_are_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    offenders = [f"{path}: {length} lines" for path, length in lengths.items() if length > MAX_FILE_LINES]
    assert not offenders, "\n".join(offenders)


def test_functions_are_short():
    offenders = [
        f"{path}: {name} has {length} lines"
        for path in FILES
        for name, length in long_functions(path.read_text(encoding="utf-8"))
    ]
    assert not offenders, "\n".join(offenders)


def test_format_numbers_live_in_formats():
    offenders = [
        f"{path}:{line}"
        for path in FILES
        if path.parent != PACKAGE / "formats"
        for line in format_numbers(path.read_text(encoding="utf-8"))
    ]
    assert not offenders, "\n".join(offenders)


def test_the_number_rule_sees_the_formats_themselves():
    assert any(
        format_numbers(path.read_text(encoding="utf-8")) for path in (PACKAGE / "formats").glob("*.py")
    )


@pytest.mark.parametrize("source", ["x = 448", "x = y / 448.0", "f(-2688.0)", "def f(x=448): pass"])
def test_planted_number_is_found(source):
    assert format_numbers(source) == [1]


@pytest.mark.parametrize("source", ["x = '448'", "x = 447", "x = True", "# 448"])
def test_other_constants_are_not(source):
    assert format_numbers(source) == []


def test_planted_long_function_is_found_and_its_docstring_is_free():
    body = "    x = 1\n" * MAX_FUNCTION_LINES
    docstring = '    """A.\n\n' + "    b\n" * 90 + '    """\n'
    assert long_functions("def f():\n" + body) == [("f", MAX_FUNCTION_LINES + 1)]
    assert long_functions("def f():\n" + docstring + "    x = 1\n" * 10) == []
