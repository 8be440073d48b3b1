"""Every reported fault has a guard and a test, and each test fails once its guard is gone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ocrquant.errors import ShapeError
from ocrquant.formats.precision import FORMATS, Precision
from tests.faults.removal import STANDINS, find, removed, run
from tests.faults.table import FAULTS, NUMBERS, Guard

ROOT = Path(__file__).parents[2]
GUARDS = tuple(dict.fromkeys(guard for fault in FAULTS for guard in fault.guards))


def test_every_report_is_in_the_table_once_and_answered():
    assert tuple(fault.number for fault in FAULTS) == tuple(NUMBERS.split())
    for fault in FAULTS:
        assert fault.report
        assert fault.met
        assert bool(fault.guards or fault.tests) is not bool(fault.reason), fault.number


def test_every_test_of_the_table_is_there():
    named = {test for fault in FAULTS for test in (*fault.tests, *(g.test for g in fault.guards))}
    known: dict[str, set[str]] = {}
    for test in sorted(named):
        path, _, name = test.partition("::")
        if path not in known:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            known[path] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name.partition("[")[0] in known[path], test


def test_every_row_has_a_guard_but_for_one():
    unguarded = [fault.number for fault in FAULTS if not fault.guards]
    assert unguarded == ["B55"]  # nothing here traces a model, and nothing can be taken away to make it


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: f"{guard.function} {guard.test}")
def test_without_its_guard_a_test_fails(guard: Guard):
    with removed(guard.function, guard.becomes):
        counts = run(guard.test, str(ROOT))
    assert counts["failed"] == 1, counts


def test_a_guard_comes_back():
    function = find("ocrquant.formats.precision:Format.weight_bytes")
    before = FORMATS[Precision.NVFP4].weight_bytes(2, 32)
    for becomes in STANDINS:
        with removed("ocrquant.formats.precision:Format.weight_bytes", becomes):
            assert function(FORMATS[Precision.NVFP4], 2, 32) != before
    assert FORMATS[Precision.NVFP4].weight_bytes(2, 32) == before


def test_a_line_of_a_guard_is_exchanged():
    row = FORMATS[Precision.NVFP4]
    name = "ocrquant.formats.precision:Format.fits"
    assert not row.fits(33)
    with removed(name, ("% self.width_multiple", "% 1")):
        assert row.fits(33)
    assert not row.fits(33)
    with pytest.raises(AssertionError, match="is not once in"), removed(name, ("no such text", "")):
        pass


def test_only_errors_are_left_out():
    row = FORMATS[Precision.NVFP4]
    with pytest.raises(ShapeError):
        row.weight_bytes(2, 33)
    with removed("ocrquant.formats.precision:Format.weight_bytes", "no error"):
        assert row.weight_bytes(2, 33) > 0
        assert row.weight_bytes(2, 32) == 2 * 18 + 4
    with (
        pytest.raises(AssertionError, match="raises nothing"),
        removed("ocrquant.formats.nvfp4:unpack", "no error"),
    ):
        pass
