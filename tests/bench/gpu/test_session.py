"""Sections in turn: none is lost by another, none begins too late; lines come as they are measured."""

import pytest
import torch
from typer.testing import CliRunner

from ocrquant.bench import gpu
from ocrquant.bench.gpu import SECTIONS, Settings, render, sections
from ocrquant.bench.gpu.result import GpuResult, Line, Machine
from ocrquant.bench.gpu.session import Section, Session, run_sections
from ocrquant.bench.run import run_benchmark
from ocrquant.cli import app

CPU = torch.device("cpu")


class FixedTimer:
    """Runs every arm once and says that it took so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def measure(self, arms, repeats):
        for arm in arms.values():
            arm()
        return {name: [self.seconds] * repeats for name in arms}


def session(**more):
    return Session(CPU, "sm_90a", FixedTimer(1e-3), repeats=12, **more)


def good(_):
    yield Line.of("good", "one", 1.0)
    yield Line.of("good", "two", 2.0)


def broken(_):
    yield Line.of("broken", "begun", 1.0)
    raise RuntimeError("CUDA error: out of memory")


def test_a_section_that_fails_leaves_what_it_had_and_loses_no_other():
    shown = []
    lines = run_sections(session(), [Section("broken", broken), Section("good", good)], shown.append)
    assert [(line.section, line.value) for line in lines] == [
        ("broken", 1.0),
        ("broken", None),
        ("good", 1.0),
        ("good", 2.0),
    ]
    assert lines[1].not_measured == "RuntimeError: CUDA error: out of memory"
    assert shown == [line.render() for line in lines]


def test_a_section_that_takes_longer_than_is_left_is_cut_and_says_so():
    now = [1.0]

    def slow(_):
        for number in range(3):
            now[0] += 6.0
            yield Line.of("slow", f"{number}", 1.0)

    lines = run_sections(
        session(deadline=10.0, clock=lambda: now[0]), [Section("slow", slow)], lambda text: None
    )
    assert [line.what for line in lines] == ["0", "1", "whatever follows"]
    assert lines[-1].not_measured == "the time of the run is over"


def test_a_section_that_needs_more_than_is_left_is_not_begun():
    late = session(deadline=10.0, clock=lambda: 1.0)
    lines = run_sections(late, [Section("good", good, 60.0), Section("good", good, 2.0)], lambda text: None)
    assert lines[0].not_measured == "9 s of the time are left and it needs 60"
    assert [line.value for line in lines] == [None, 1.0, 2.0]


def test_sections_are_those_of_the_settings():
    assert [section.name for section in sections(SECTIONS)] == list(SECTIONS)
    assert Settings().seconds < 600
    assert sum(section.seconds for section in sections(SECTIONS)) < Settings().seconds


def test_without_a_gpu_the_command_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["bench", "gpu"])
    assert result.exit_code == 25
    assert "make gpu: expected a CUDA device, got none on this machine" in result.stderr


def test_a_run_is_shown_written_and_summed_up(monkeypatch, tmp_path, capsys):
    machine = Machine(
        device="A GPU",
        arch="sm_90a",
        memory_bytes=1,
        driver="",
        cuda="",
        torch="2",
        date="2026-01-01",
        commit=None,
    )
    monkeypatch.setattr(gpu, "_device", lambda name: CPU)
    monkeypatch.setattr(gpu, "arch_of", lambda device: gpu_arch())
    monkeypatch.setattr(gpu, "CudaTimer", lambda device: FixedTimer(1.0))
    monkeypatch.setattr(gpu, "describe_gpu", lambda device: machine)
    monkeypatch.setattr(gpu, "sections", lambda names: [Section("good", good), Section("missed", missed)])
    data = run_benchmark("gpu", [f"folder={tmp_path}", "sections=[pico]"])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "good: one: 1"
    assert said[-2:] == ["missed: share: 0.5; at least 0.8: missed", str(tmp_path / "a-gpu-2026-01-01.json")]
    assert said[-3].startswith("3 lines, 0 not measured, 1 missed")
    assert GpuResult.load(tmp_path / "a-gpu-2026-01-01.json").machine == machine
    assert render(data).splitlines()[-1] == str(tmp_path / "a-gpu-2026-01-01.json")


def missed(_):
    yield Line.of("missed", "share", 0.5, at_least=0.8)


def gpu_arch():
    from ocrquant.kernels.matmul.arch import ARCHES

    return ARCHES["sm_90a"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_timer_of_a_gpu_sees_longer_kernels():
    from ocrquant.bench.gpu.session import CudaTimer

    device = torch.device("cuda:0")
    small, large = (torch.zeros(n, device=device) for n in (1 << 20, 1 << 28))
    seconds = CudaTimer(device).measure({"small": small.zero_, "large": large.zero_}, 12)
    assert len(seconds["small"]) == 12
    assert min(seconds["large"]) > 4 * max(sorted(seconds["small"])[:10])
