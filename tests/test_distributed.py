"""Work dealt out to processes and put together again."""

import json
import subprocess
import sys

import pytest

from ocrquant.distributed import Ranks, ranks
from ocrquant.errors import EnvironmentVariableError

TWO_RANKS = """
import json, sys
from ocrquant.distributed import ranks
here = ranks()
mine = here.share(list(range(5)))
found = here.gather({"rank": here.index, "units": mine})
here.wait()
if here.is_first:
    print(json.dumps(found))
"""


ONE_FAILS = """
import os, sys
from ocrquant.distributed import ranks
from ocrquant.errors import ModelError
here = ranks()
try:
    with here.together():
        here.gather("both are here")
        if here.index == int(sys.argv[1]):
            raise {error}
        here.wait()
        here.gather("nobody comes here")
except Exception as error:
    # One write: under torchrun (python -u) print writes text and newline apart, and two processes' lines mix.
    sys.stdout.write(f"{{here.index}} {{type(error).__name__}}: {{error}}\\n")
"""


def torchrun(tmp_path, text, *arguments):
    script = tmp_path / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.run(
        [*command, str(script), *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    return process.stdout


@pytest.fixture(autouse=True)
def _fresh_ranks():
    ranks.cache_clear()
    yield
    ranks.cache_clear()


def test_one_process_does_everything(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    here = ranks()
    assert here == Ranks(0, 1)
    assert here.is_first
    assert here.share([3, 1, 2]) == [3, 1, 2]
    assert here.gather("x") == ["x"]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_unit_has_one_process(count):
    units = list(range(5))
    shares = [Ranks(index, count).share(units) for index in range(count)]
    assert sorted(unit for share in shares for unit in share) == units


@pytest.mark.parametrize("given", [{"RANK": "0"}, {"WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"}])
def test_half_of_the_variables_is_refused(monkeypatch, given):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentVariableError, match="torchrun"):
        ranks()


def test_two_processes_gather_in_the_order_of_ranks(tmp_path):
    found = json.loads(torchrun(tmp_path, TWO_RANKS))
    assert found == [{"rank": 0, "units": [0, 2, 4]}, {"rank": 1, "units": [1, 3]}]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_an_error_of_one_process_is_that_of_all(tmp_path, rank):
    error = "ModelError('weights', expected='numbers', given='none', fix='fetch them')"
    lines = torchrun(tmp_path, ONE_FAILS.format(error=error), rank).splitlines()
    text = "ModelError: weights: expected numbers, got none; fetch them"
    assert sorted(lines) == [f"0 {text}", f"1 {text}"]


def test_an_error_of_another_kind_crosses_over_as_its_text(tmp_path):
    lines = torchrun(tmp_path, ONE_FAILS.format(error="KeyError('x')"), "1").splitlines()
    text = "RuntimeError: rank 1: KeyError('x')"
    assert sorted(lines) == [f"0 {text}", f"1 {text}"]


def test_alone_an_error_stays_what_it_is():
    with pytest.raises(KeyError), Ranks().together():
        raise KeyError("x")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_costs_are_dealt_evenly(count):
    costs = [5, 1, 1, 4, 3, 3, 1]
    shares = [Ranks(index, count).share_by_cost(costs) for index in range(count)]
    assert sorted(number for share in shares for number in share) == list(range(len(costs)))
    sums = [sum(costs[number] for number in share) for share in shares]
    assert max(sums) == {1: 18, 2: 9, 3: 6}[count]
