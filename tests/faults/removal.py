"""Guards taken away for a moment, to see that a test misses them.

A guard is a function of the package. Its code object is exchanged, so that everybody who holds the function,
in a table or under another name, meets the change.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

import pytest

STANDINS: dict[str, FunctionType] = {
    "nothing": lambda *_args, **_kwargs: None,
    "empty": lambda *_args, **_kwargs: {},
    "none of them": lambda *_args, **_kwargs: [],
    "true": lambda *_args, **_kwargs: True,
    "false": lambda *_args, **_kwargs: False,
    "its argument": lambda first, *_args, **_kwargs: first,
}
"""What a guard may become; besides, ``no error`` leaves out every ``raise`` of it.

Where a guard is one line among others, it becomes a pair of texts: the first, which has to be in its source
once, is exchanged for the second.
"""

Becomes = str | tuple[str, str]


def find(name: str) -> FunctionType:
    """A function by ``module:qualified.name``."""
    module, _, path = name.partition(":")
    found: Any = reduce(getattr, path.split("."), import_module(module))
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), name
    return found


@contextmanager
def removed(name: str, becomes: Becomes) -> Iterator[None]:
    """A guard is not there."""
    function = find(name)
    before = function.__code__
    if isinstance(becomes, tuple):
        function.__code__ = _with_text(function, *becomes)
    else:
        function.__code__ = _without_errors(function) if becomes == "no error" else STANDINS[becomes].__code__
    try:
        yield
    finally:
        function.__code__ = before


class _Unraised(ast.NodeTransformer):
    def __init__(self) -> None:
        self.count = 0

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        self.count += 1
        return ast.copy_location(ast.Pass(), node)


def _without_errors(function: FunctionType) -> CodeType:
    transformer = _Unraised()
    tree = ast.fix_missing_locations(transformer.visit(ast.parse(_source(function))))
    assert transformer.count, f"{function.__qualname__} raises nothing"
    return _compiled(function, tree)


def _with_text(function: FunctionType, old: str, new: str) -> CodeType:
    source = _source(function)
    assert source.count(old) == 1, f"{old!r} is not once in {function.__qualname__}"
    return _compiled(function, ast.parse(source.replace(old, new)))


def _source(function: FunctionType) -> str:
    return textwrap.dedent(inspect.getsource(function))


def _compiled(function: FunctionType, tree: ast.Module) -> CodeType:
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list.clear()
    # Annotations as text, as in every module of the package: no name of them is needed.
    scope: dict[str, Any] = {}
    future = ast.parse("from __future__ import annotations").body
    tree.body[:0] = future
    exec(compile(tree, inspect.getfile(function), "exec"), dict(function.__globals__), scope)
    made: FunctionType = scope[function.__name__]
    assert made.__code__.co_freevars == function.__code__.co_freevars, "a guard without a closure"
    return made.__code__


class _Outcomes:
    """Counts what came of the tests of a run; a fixture that breaks is no test that fails."""

    def __init__(self) -> None:
        self.counts = {"passed": 0, "failed": 0, "skipped": 0, "broken": 0}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.counts[report.outcome] += 1
        elif report.outcome != "passed":
            self.counts["skipped" if report.outcome == "skipped" else "broken"] += 1


def run(test: str, root: str, arguments: Callable[[], list[str]] = list) -> dict[str, int]:
    """Outcomes of a test, or of all parameters of one, in this process."""
    outcomes = _Outcomes()
    options = [
        "--rootdir",
        root,
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=no",
        *arguments(),
    ]
    pytest.main([*options, f"{root}/{test}"], plugins=[outcomes])
    return outcomes.counts
