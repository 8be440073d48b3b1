"""The emulated kernels under address and undefined-behaviour sanitizers, in another process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLUGIN = """
import os
from pathlib import Path
from ocrquant.kernels.cuda import compiler
checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g")
compiler._HOST = (*compiler._HOST, *checks)
compiler.LIBRARIES = Path(os.environ["LIBRARIES"])
"""
OVERRUN = """
import sanitized, torch
from ocrquant.kernels.cuda.library import run
x = torch.zeros(2, 8)
run("convert", x.device, x.data_ptr(), 24, x.data_ptr(), x.data_ptr(), x.data_ptr(), 0)
"""
FILES = [f"tests/kernels/cuda/test_{name}.py" for name in ("conversions", "producers", "linear", "replay")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables of a process whose emulated kernels are compiled with sanitizers."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    libraries = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(library).is_file() for library in libraries):
        pytest.skip("the compiler has no sanitizer runtimes")
    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "sanitized.py").write_text(PLUGIN)
    return {
        **os.environ,
        "LIBRARIES": str(folder / "libraries"),
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "LD_PRELOAD": " ".join(libraries),
        # Python and torch keep memory until the end, which is no leak of these kernels.
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.slow
def test_the_tests_of_the_kernels_pass_under_sanitizers(environment):
    # Without barriers threads read what nobody wrote yet, and may write anywhere: not here.
    chosen = "not barrier and not capture"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "sanitized", "-p", "no:cacheprovider"]
    process = subprocess.run(
        [*command, "-k", chosen, *FILES], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]


@pytest.mark.slow
def test_an_overrun_is_caught(environment):
    process = subprocess.run(
        [sys.executable, "-c", OVERRUN], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert process.returncode != 0
    assert "heap-buffer-overflow" in process.stderr
