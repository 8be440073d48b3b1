"""What `make gpu` says of FlashInfer and flash-linear-attention, with stand-ins for both."""

import sys

import pytest
import torch

from ocrquant.bench.gpu import libraries
from ocrquant.bench.gpu.session import Session
from ocrquant.kernels.matmul import library
from tests.bench.gpu.test_sections import SMALL
from tests.bench.gpu.test_session import CPU, FixedTimer
from tests.kernels.gated_delta_rows.test_chunked import put_standin
from tests.kernels.matmul import flashinfer_standin, scaled


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(libraries, "MODEL_SHAPE", SMALL)
    monkeypatch.setattr(libraries, "_ROWS", (1, 5))
    monkeypatch.setattr(libraries, "_LENGTHS", (9,))


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(libraries, "unusable", lambda name: "")
    monkeypatch.setattr(library, "_scaled_mm", scaled.scaled_mm)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_standin.module())
    put_standin(monkeypatch)


def on(arch):
    return Session(CPU, arch, FixedTimer(1.0), repeats=2)


def test_products_are_held_against_the_definition_and_timed_against_torch(small, installed):
    lines = list(libraries.flashinfer(on("sm_100a")))
    # 8 outputs of one product fit neither; the others: two precisions, two numbers of rows, two lines.
    left = [line for line in lines if line.value is None]
    assert [line.not_measured for line in left] == [
        "8 outputs are no multiple of 32",
        "8 outputs are no multiple of 16",
    ]
    assert len(lines) - len(left) == 2 * (len(SMALL.products) - 1) * 2 * 2
    checks = [line for line in lines if line.what.endswith("results of the definition")]
    assert len(checks) == (len(lines) - len(left)) // 2
    assert {line.verdict for line in checks} == {"reached"}
    times = [line for line in lines if line.unit == "us"]
    assert {line.gain for line in times} == {1.0}
    assert {line.note.split()[0] for line in times} == {"scaled_mm"}


def test_a_product_that_is_another_misses(small, installed, monkeypatch):
    def wrong(*arguments, **named):
        out = flashinfer_standin.mm_fp4(*arguments, **named)
        return out.mul_(1.05)

    monkeypatch.setattr(sys.modules["flashinfer"], "mm_fp4", wrong)
    checks = [line for line in libraries.flashinfer(on("sm_100a")) if line.at_least is not None]
    assert {line.verdict for line in checks if "mm_fp4" in line.what} == {"missed"}
    assert {line.verdict for line in checks if "bmm_fp8" in line.what} == {"reached"}


def test_what_a_machine_or_an_installation_lacks_is_said(small, installed, monkeypatch):
    lines = list(libraries.flashinfer(on("sm_90a")))
    for line in lines:
        if "mm_fp4" in line.what and "bmm" not in line.what:
            assert line.not_measured == "sm_90a has no nvfp4 matrix units"
    assert sum(line.unit == "us" for line in lines) == (len(SMALL.products) - 1) * 2
    monkeypatch.setattr(libraries, "unusable", lambda name: f"{name} is not installed")
    lines = [*libraries.flashinfer(on("sm_100a")), *libraries.fla(on("sm_100a"))]
    assert [line.not_measured for line in lines] == [
        *["flashinfer is not installed"] * 2,
        "fla is not installed",
    ]


def test_chunks_are_held_against_rows_and_timed_against_them(small, installed, monkeypatch):
    same, time = libraries.fla(on("sm_100a"))
    assert (same.verdict, time.gain, time.unit) == ("reached", 1.0, "us")
    chunked = libraries.gated_delta_rows_chunked

    def wrong(mixed, a, *more):
        chunked(mixed, torch.zeros_like(a), *more)

    monkeypatch.setattr(libraries, "gated_delta_rows_chunked", wrong)
    same, _ = libraries.fla(on("sm_100a"))
    assert same.verdict == "missed"
