"""Every kernel compiled for an H200 and a B200: nothing spills, and the intended instructions are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from ocrquant.bench.kernels import render
from ocrquant.kernels.selection import TRITON_OPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]

MOST_REGISTERS = 255
COMMAND = [sys.executable, "-m", "ocrquant", "bench", "kernels", "--json"]


def bench() -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(COMMAND, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def report():
    process = bench()
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


ARCHS = pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])


@ARCHS
def test_every_op_with_a_kernel_is_compiled(report, arch):
    calls = report["results"][arch]
    compiled = {name.partition(",")[0].partition(" ")[0] for name in calls}
    assert compiled >= set(TRITON_OPS)
    assert all(calls.values())


@ARCHS
def test_no_kernel_spills(report, arch):
    builds = [build for builds in report["results"][arch].values() for build in builds]
    assert len(builds) >= 24
    assert [b for b in builds if b["stack_bytes"] or not 0 < b["registers"] <= MOST_REGISTERS] == []
    assert [goal["verdict"] for goal in report["goals"]] == ["reached"]


@ARCHS
def test_conversions_and_loads_are_those_of_the_hardware(report, arch):
    for name, builds in report["results"][arch].items():
        found = builds[0]["instructions"]
        if name != "move_cursors":
            assert found["16-byte loads"] > 0, name
        if "fp8" in name or "nvfp4" in name:
            assert found["cvt.rn.satfinite.e4m3x2"] > 0, name
        if name.startswith("replay"):  # products of tensor cores, three for each of float32
            assert found["mma"] > 0, name
        # Hopper has no conversion to E2M1 and counts in integers.
        expects_e2m1 = "nvfp4" in name and arch == "sm_100a"
        assert (found["cvt.rn.satfinite.e2m1x2"] > 0) is expects_e2m1, name


def test_a_spilling_kernel_is_seen_and_the_interpreter_compiles_nothing():
    """The reader of registers has teeth: 24 of them are too few."""
    code = """
from dataclasses import replace
from triton import knobs
from ocrquant.errors import DeviceError
from ocrquant.kernels.triton_common.catalogue import recorded
from ocrquant.kernels.triton_common.compiled import compile_launch
(noted,) = recorded("quantize, fp8 by token", 90)
narrow = replace(noted, constants={**noted.constants, "maxnreg": 24})
print(compile_launch(narrow, 90).stack_bytes)
knobs.runtime.interpret = True
try:
    compile_launch(noted, 90)
except DeviceError as error:
    print(error)
"""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert process.returncode == 0, process.stderr
    stack, refusal = process.stdout.splitlines()[:2]
    assert int(stack) > 0
    assert "TRITON_INTERPRET" in refusal


def test_the_table_names_what_was_compiled(report):
    lines = render(report).splitlines()
    assert lines[0] == "sm_90a"
    assert lines[1].split()[:3] == ["call", "kernel", "registers"]
    assert any(line.startswith("quantize, nvfp4") and "quantize_kernel" in line for line in lines)
