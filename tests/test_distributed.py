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
    script = tmp_path / "two.py"
    script.write_text(TWO_RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(process.stdout) == [{"rank": 0, "units": [0, 2, 4]}, {"rank": 1, "units": [1, 3]}]
