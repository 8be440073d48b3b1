"""Every kernel compiled for every GPU, without one: none spills, and the intended instructions are there."""

from __future__ import annotations

import pytest

from ocrquant.errors import DeviceError
from ocrquant.kernels.cuda import ARCHITECTURES, Build, architecture_of, build, missing_compiler
from ocrquant.kernels.cuda.__main__ import main, table
from ocrquant.kernels.cuda.resources import parse_resources

needs_nvcc = pytest.mark.skipif(
    bool(missing_compiler("sm_90a")), reason=missing_compiler("sm_90a") or "there"
)

PRODUCERS = ("Rows", "SiluMul", "GatedNorm")
# Kernel's name begins with: instructions on each architecture. H200 has no instruction to FP4.
INTENDED = {
    **{f"produce<{source}": ("load 16 bytes", "to E4M3", "to E2M1") for source in PRODUCERS},
    "replay_window<": ("load 16 bytes", "tensor product"),
    "small_linear<": ("load 16 bytes", "tensor product"),
}
# Blocks a multiprocessor: six of 256 threads, three of 128, two of 256.
MOST_REGISTERS = {"produce<": 40, "replay_window<": 168, "small_linear<": 128}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def compiled(request) -> Build:
    return build(request.param)


@needs_nvcc
def test_no_kernel_spills(compiled: Build):
    assert len(compiled.kernels) >= 14
    assert {
        k.name: k.spill_bytes + k.stack_bytes for k in compiled.kernels if k.spill_bytes + k.stack_bytes
    } == {}


@needs_nvcc
def test_kernels_have_the_instructions_they_were_written_for(compiled: Build):
    for start, wanted in INTENDED.items():
        found = [k for k in compiled.kernels if k.name.startswith(start)]
        assert found, start
        for kernel in found:
            for instruction in wanted:
                is_there = kernel.instructions.get(instruction, 0) > 0
                expected = instruction != "to E2M1" or compiled.architecture == "sm_100a"
                assert is_there == expected, f"{kernel.name}: {instruction}"


@needs_nvcc
def test_registers_leave_room_for_several_blocks(compiled: Build):
    for start, most in MOST_REGISTERS.items():
        assert max(k.registers for k in compiled.kernels if k.name.startswith(start)) <= most


def test_the_compilers_words_by_hand():
    said = """ptxas info    : Compiling entry function 'one' for 'sm_90a'
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes stack frame, 1024 bytes smem
"""
    ptx = """.visible .entry one(
\t.param .u64 p
)
{
\tld.global.nc.L1::no_allocate.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
\tld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
\tld.global.u32 %r1, [%rd1];
\tcvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f2;
}
"""
    (kernel,) = parse_resources(said, ptx)
    assert (kernel.registers, kernel.stack_bytes, kernel.spill_bytes, kernel.shared_bytes) == (
        40,
        8,
        16,
        1024,
    )
    assert kernel.instructions == {"load 16 bytes": 2, "to E4M3": 1}
    assert table([("sm_90a", "one", "40", "16", "1024", "")]).splitlines()[1].split() == [
        "sm_90a",
        "one",
        "40",
        "16",
        "1024",
    ]


def test_an_unknown_architecture_is_refused(capsys):
    with pytest.raises(DeviceError, match="sm_90a, sm_100a, emulated, got sm_80"):
        build("sm_80")
    assert main(["sm_80"]) == DeviceError.exit_code
    assert "sm_80" in capsys.readouterr().err
    assert [architecture_of(c) for c in ((9, 0), (10, 0), (10, 3))] == ["sm_90a", "sm_100a", None]


def test_a_missing_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("ocrquant.kernels.cuda.compiler._compiler", lambda _: None)
    with pytest.raises(DeviceError, match="no nvcc on this machine"):
        build("sm_90a", tmp_path)


def test_sources_that_do_not_compile_are_said(tmp_path, monkeypatch):
    sources = tmp_path / "csrc" / "cuda"
    sources.mkdir(parents=True)
    (sources / "launch.cu").write_text("int f( { return 0; }\n")
    monkeypatch.setattr("ocrquant.kernels.cuda.compiler.SOURCES", sources)
    if missing_compiler("emulated"):
        pytest.skip(missing_compiler("emulated"))
    with pytest.raises(DeviceError, match="error"):
        build("emulated", tmp_path / "build")
    assert not list((tmp_path / "build").glob("*.so"))
