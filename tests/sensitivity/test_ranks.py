"""Two processes find what one does, byte for byte."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ocrquant.artifacts import PageScores, Sensitivity

ROOT = Path(__file__).parents[2]

# A lock of its own for each process: here the folder is shared on purpose.
SCRIPT = """
import pickle, sys
from pathlib import Path
from filelock import FileLock
import torch
torch.set_num_threads(1)
from ocrquant.adapters.model import load_model
from ocrquant.artifacts import Rounding, RunFolder
from ocrquant.assign.grid import grid_plans
from ocrquant.distributed import ranks
from ocrquant.formats import Precision
from ocrquant.recipe.sections import SearchSection, SensitivitySection
from ocrquant.sensitivity import growth, measure_sensitivity
from ocrquant.sensitivity.judge import PlanJudge
growth.FIRST_PAGES = 3
model, folder = sys.argv[1], Path(sys.argv[2])
pages = pickle.loads((folder / "pages.pickle").read_bytes())
here = ranks()
run = RunFolder(folder, FileLock(folder / f".lock-{here.index}"))
rounding = run.load(Rounding)
section = SensitivitySection(candidates=[Precision.NVFP4, Precision.FP8], batch_size=2)
document = load_model(model)
found = measure_sensitivity(run, document, pages, rounding, section, SearchSection(), {}, grid_plans)
with PlanJudge(run, document, pages, rounding, section, {}) as judge:
    judged = judge(grid_plans(found)["7.5 bits"], "fp8")
if here.is_first:
    (folder / "judged.txt").write_text(repr(judged))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory, rounded_run, pages, tiny_model_folder):
    """Run folders of one process and of two."""
    import pickle

    folder = tmp_path_factory.mktemp("ranks")
    (folder / "script.py").write_text(SCRIPT)
    found = {}
    for count in (1, 2):
        path = folder / f"run-{count}"
        shutil.copytree(rounded_run[0], path, ignore=shutil.ignore_patterns(".lock", ".partial"))
        (path / "pages.pickle").write_bytes(pickle.dumps(pages))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        subprocess.run(
            [*command, str(count), str(folder / "script.py"), str(tiny_model_folder), str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
            timeout=600,
        )
        found[count] = path
    return found


@pytest.mark.parametrize("name", [Sensitivity.FILE_NAME, PageScores.FILE_NAME, "judged.txt"])
def test_two_processes_write_the_bytes_of_one(results, name):
    one, two = ((results[count] / name).read_bytes() for count in (1, 2))
    assert one == two
    assert len(one) > 100


def test_both_processes_had_something_to_do(results):
    """What the judge wrote down stays: each process a journal, each batch in one of them."""
    journals = sorted((results[2] / ".partial" / "judge").glob("plans-*.jsonl"))
    assert [len(path.read_text().splitlines()) > 0 for path in journals] == [True, True]
