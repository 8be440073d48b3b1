"""The native ops under address and undefined-behaviour sanitizers: their own tests, in another process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("ocrquant._native", os.environ["SANITIZED"])
module = importlib.util.module_from_spec(spec)
sys.modules["ocrquant._native"] = module
spec.loader.exec_module(module)
"""
OVERRUN = """
import sanitized, torch, ocrquant._native as native
x = torch.zeros(8, dtype=torch.bfloat16)
width = x.numel() + 64
native.add(x.data_ptr(), x.data_ptr(), x.data_ptr(), 1, width, width)
"""
# Every folder of native ops; the rest of tests/kernels is about Python or another library.
FOLDERS = sorted(path.parent.name for path in (ROOT / "csrc" / "cpu").glob("*/bind.cpp"))


def _runtime(name: str) -> str:
    compiler = os.environ.get("CXX", "c++")
    process = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True)
    return process.stdout.strip()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables of a process that loads a sanitized extension; skipped where it cannot be built."""
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("cmake and a C++ compiler are needed to build with sanitizers")
    libraries = [_runtime("libasan.so"), _runtime("libubsan.so")]
    if not all(Path(library).is_file() for library in libraries):
        pytest.skip("the compiler has no sanitizer runtimes")
    build = tmp_path_factory.mktemp("sanitized")
    configure = [
        cmake,
        "-S",
        ROOT,
        "-B",
        build,
        "-DOCRQUANT_SANITIZE=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    for command in (configure, [cmake, "--build", build, "--parallel", "2"]):
        process = subprocess.run(command, capture_output=True, text=True)
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    (build / "sanitized.py").write_text(PLUGIN)
    return {
        **os.environ,
        "SANITIZED": str(next(build.rglob("_native*.so"))),
        "PYTHONPATH": os.pathsep.join([str(build), str(ROOT)]),
        "LD_PRELOAD": " ".join(libraries),
        # Python and torch keep memory until the end, which is no leak of these kernels.
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "2",
    }


@pytest.mark.slow
def test_the_tests_of_every_op_pass_under_sanitizers(environment):
    folders = [f"tests/kernels/{name}" for name in FOLDERS]
    assert all((ROOT / folder).is_dir() for folder in folders), folders
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "sanitized",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
    ]
    process = subprocess.run([*command, *folders], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-5000:]


@pytest.mark.slow
def test_a_planted_overrun_is_caught(environment):
    process = subprocess.run([sys.executable, "-c", OVERRUN], env=environment, capture_output=True, text=True)
    assert process.returncode != 0
    assert "heap-buffer-overflow" in process.stderr
