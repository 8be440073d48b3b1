"""From a name and settings to a result: what is refused, printed, written and kept."""

import inspect
import json
import sys
from importlib import import_module
from types import ModuleType

import pytest
from pydantic import Field
from typer.testing import CliRunner

from ocrquant.bench import run as running
from ocrquant.bench.registry import BENCHMARKS, Entry
from ocrquant.bench.report import BenchSettings, Report
from ocrquant.bench.run import read_settings, run_benchmark
from ocrquant.cli import app
from ocrquant.errors import OutputError, RecipeError


class Settings(BenchSettings):
    rows: int = Field(1, ge=1)
    threads: tuple[int, ...] = (1, 2)


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """A benchmark of nothing by the name ``nothing``; results are kept in a folder of the test."""
    module = ModuleType("nothing")
    module.Settings = Settings
    module.run = lambda settings, repeats: Report("nothing", settings, repeats, {"rows": settings.rows})
    monkeypatch.setitem(sys.modules, "nothing", module)
    monkeypatch.setattr(running, "BENCHMARKS", {"nothing": Entry("nothing", "measures nothing")})
    monkeypatch.setattr(running, "RESULTS", tmp_path / "kept")
    return tmp_path


def test_settings_are_read_as_yaml():
    assert read_settings(Settings, ["rows=3", "threads=[4]"]) == Settings(rows=3, threads=(4,))
    assert read_settings(Settings, []) == Settings()


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("row=3", ["row", "rows=1", "unknown"]),
        ("rows", ["KEY=VALUE"]),
        ("rows=0", ["rows", "greater than or equal to 1"]),
        ("rows=many", ["rows", "integer"]),
        ("rows=[", ["rows=["]),
    ],
)
def test_settings_out_of_range_are_named(assignment, words):
    with pytest.raises(RecipeError) as error:
        read_settings(Settings, [assignment])
    for word in words:
        assert word in str(error.value)


def test_the_result_is_printed_last_and_kept_only_when_asked(benchmark, capsys):
    data = run_benchmark("nothing", ["rows=2"], repeats=12)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(data))
    assert data["results"] == {"rows": 2}
    assert data["settings"] == {"rows": 2, "threads": [1, 2]}
    assert data["repeats_note"] == ""
    assert list(benchmark.iterdir()) == []

    out = benchmark / "sub" / "result.json"
    data = run_benchmark("nothing", repeats=12, out=out, keep=True)
    assert json.loads(out.read_text()) == json.loads(json.dumps(data))
    (kept,) = (benchmark / "kept").iterdir()
    assert kept.name == f"nothing-{data['machine']['date']}.json"
    assert kept.read_text() == out.read_text()


def test_few_repeats_are_run_and_marked(benchmark, capsys):
    assert run_benchmark("nothing", repeats=11)["repeats_note"] == "too few: 11 of at least 12"
    with pytest.raises(RecipeError, match="repeats"):
        run_benchmark("nothing", repeats=0)


def test_an_unknown_name_is_refused_and_a_bad_path_named(benchmark, tmp_path, capsys):
    with pytest.raises(RecipeError, match="one of nothing"):
        run_benchmark("noting")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file/result"):
        run_benchmark("nothing", out=tmp_path / "file" / "result.json")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_there(name):
    module = import_module(BENCHMARKS[name].module)
    assert issubclass(module.Settings, BenchSettings)
    assert read_settings(module.Settings, []) == module.Settings()
    assert list(inspect.signature(module.run).parameters) == ["settings", "repeats"]


def test_repeats_of_what_is_done_once_are_refused():
    with pytest.raises(RecipeError, match="soak repeats nothing"):
        run_benchmark("soak", repeats=12)


def test_the_command_lists_runs_and_refuses(benchmark):
    cli = CliRunner()
    listed = cli.invoke(app, ["bench", "--list"])
    assert listed.exit_code == 0
    for name, entry in BENCHMARKS.items():
        assert f"{name} " in listed.output
        assert entry.summary in listed.output
    result = cli.invoke(app, ["bench", "nothing", "--set", "rows=5", "--repeats", "1"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["results"] == {"rows": 5}
    refused = cli.invoke(app, ["bench", "nothing", "--checkpoint", "folder"])
    assert refused.exit_code == 10
    assert "checkpoint" in refused.stderr
