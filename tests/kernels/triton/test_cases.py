"""Runs the cases in Triton's interpreter, in processes of their own: it is chosen when Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"
ROOT = Path(__file__).parents[3]

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {"TRITON_INTERPRET": "1", "OCRQUANT_KERNELS": "triton"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | settings, check=False
    )


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_the_interpreter_computes_what_the_definitions_say(half):
    """In two processes: each takes seconds to start, and two run beside one another."""
    process = run(*sorted(map(str, CASES.glob("test_*.py")))[half::2])
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-1000:]
    assert " passed" in process.stdout


@needs_triton
def test_a_kernel_that_uses_no_numerics_has_its_casts_put_right():
    code = """
import ocrquant.kernels.triton_common.launch
from triton.runtime import interpreter
print(interpreter._convert_float.__module__)
"""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert process.stdout.strip() == "ocrquant.kernels.triton_common.interpreter", process.stderr


@needs_triton
def test_a_failing_case_is_seen(tmp_path):
    (tmp_path / "test_planted.py").write_text("def test_planted():\n    assert False\n")
    assert run(str(tmp_path / "test_planted.py")).returncode == 1
