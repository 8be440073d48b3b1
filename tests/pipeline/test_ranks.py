"""Two processes that share a run write the bytes of one, and end together."""

import subprocess
import sys
from pathlib import Path

from ocrquant.artifacts import sha256_file
from ocrquant.pipeline import run_recipe
from ocrquant.recipe import load_recipe

ARTEFACTS = (
    "pages.json",
    "statistics.json",
    "statistics.safetensors",
    "rounding.json",
    "rounding.safetensors",
)
ARTEFACTS += ("sensitivity.json", "assignment.yaml")
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def digests(folder: Path) -> dict[str, str]:
    return {name: sha256_file(folder / name) for name in ARTEFACTS}


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*TWO, "-m", "ocrquant", "calibrate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_two_processes_write_the_bytes_of_one(write_recipe, tmp_path):
    alone = run_recipe(load_recipe(write_recipe()), until="assign")
    expected = digests(alone)
    path = write_recipe(output=str(tmp_path / "shared"))
    process = started(str(path), "--until", "assign")
    assert process.returncode == 0, process.stderr
    assert digests(tmp_path / "shared") == expected
    assert not list((tmp_path / "shared" / ".partial").glob("*/"))
    # Only the first process speaks.
    assert process.stderr.count("done ") == 1
    again = started(str(path), "--until", "assign")
    assert again.stderr.count("up to date") == 5


def test_the_error_of_a_run_is_printed_once(write_recipe, tmp_path):
    broken = write_recipe(output=str(tmp_path / "other"), weights={"num_held_back_pages": 9})
    process = started(str(broken))
    errors = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "num_held_back_pages" in errors[0]
    # torchrun itself ends with 1 and states the exit codes of its processes.
    assert process.returncode == 1
    # It may end the other process before that one has come to its own end.
    assert process.stderr.count("exitcode  : 10") in (1, 2)


def test_an_error_of_the_second_process_ends_the_first(write_recipe, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from ocrquant.calibrate import passes\n"
        "from ocrquant.cli import app\n"
        "from ocrquant.distributed import ranks\n"
        "from ocrquant.errors import ImageError\n"
        "def broken(*_):\n"
        "    raise ImageError('page 7', given='half a file')\n"
        "if not ranks().is_first:\n"
        "    passes.encode_batch = broken\n"
        "app()\n"
    )
    command = [*TWO, str(script), "calibrate", str(write_recipe())]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    errors = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert errors == ["error: page 7: got half a file"]
    assert process.stderr.count("exitcode  : 17") in (1, 2)
