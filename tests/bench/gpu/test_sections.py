"""What the sections measure, on a CPU: the same code with small sizes, and a timer that knows one time."""

import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest

from ocrquant.bench.gpu import decoding, kernels, suites
from ocrquant.bench.gpu.session import Session
from ocrquant.cost import MODELS
from ocrquant.kernels import cuda
from tests.bench.gpu.test_session import CPU, FixedTimer, session

SMALL = replace(
    MODELS["qwen3.5-9b"],
    hidden=128,
    intermediate=256,
    num_layers=4,
    num_attention=1,
    heads=2,
    kv_heads=1,
    head_dim=32,
    key_heads=2,
    value_heads=4,
    state_dim=64,
    vocab=512,
)
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "vocab_size": 256,
}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(kernels, "MODEL_SHAPE", SMALL)
    monkeypatch.setattr(kernels, "_CHUNK", 4)
    monkeypatch.setattr(kernels, "_COPY_BYTES", 1 << 20)


def test_shares_are_of_the_copy_and_bytes_are_counted(small, monkeypatch):
    """Every call takes a millisecond, so shares are those of the bytes."""
    monkeypatch.setattr(kernels.cuda, "missing_reason", lambda device: "")
    calls = []
    for name in ("silu_mul", "gated_rms_norm", "quantize", "small_linear"):
        monkeypatch.setattr(kernels.cuda, name, lambda *arguments, name=name: calls.append(name))
    lines = {line.what: line for line in kernels.bandwidth(session())}
    copy = lines["copy of 1 GiB, bytes read and written"]
    assert copy.value == pytest.approx(2 * 2**20 / 1e-3 / 1e9)
    moved = 4 * (512 * 2 + 256 + 4)  # rows: gate and up in bf16, codes, a scale
    assert lines["SiLU times up to fp8, cuda, share of the copy"].value == pytest.approx(moved / 2**21)
    # NVFP4: half a byte an element, and one tile of scales, 128 x 16, padding written.
    moved = 4 * (512 * 2 + 128) + 128 * 16
    found = lines["SiLU times up to nvfp4, triton, share of the copy"]
    assert found.value == pytest.approx(moved / 2**21)
    assert (found.at_least, found.verdict) == (0.8, "missed")
    assert set(calls) == {"silu_mul", "gated_rms_norm", "quantize", "small_linear"}
    assert len(lines) == 1 + 3 * 2 * 2 + 2 * 2


def test_a_kernel_that_is_missing_is_said_to_be(small, monkeypatch):
    monkeypatch.setattr(kernels.cuda, "missing_reason", lambda device: "nvcc is not installed")
    lines = list(kernels.bandwidth(session()))
    missing = [line for line in lines if line.value is None]
    assert len(missing) == 7
    assert {line.not_measured for line in missing} == {"nvcc is not installed"}


def test_products_of_every_format_and_number_of_rows(small):
    lines = list(kernels.products(session()))
    assert len(lines) == len(SMALL.products) * 3 * 3
    first = lines[0]
    assert first.what == "mlp 512 x 128, 1 rows, bf16"
    assert (first.value, first.unit, first.gain) == (1000.0, "us", 1.0)
    assert "% of the limit by weights" in first.note
    (only,) = kernels.products(Session(CPU, "sm_80", FixedTimer(1.0)))
    assert only.not_measured == "no stated limits of sm_80"


def test_states_are_compared_where_both_are_there(small, monkeypatch):
    monkeypatch.setattr(kernels, "_REQUESTS", 2)
    monkeypatch.setattr(kernels.cuda, "missing_reason", lambda device: "nvcc is not installed")
    lines = list(kernels.states(session()))
    assert lines[-1].not_measured == "one of the two is missing"
    monkeypatch.setattr(kernels.cuda, "missing_reason", lambda device: "")
    monkeypatch.setattr(kernels.cuda, "replay_rows", lambda *a, **k: None)
    monkeypatch.setattr(kernels, "_missing_triton", lambda op: "")
    *_, gain = kernels.states(session())
    assert (gain.what, gain.value, gain.verdict) == ("CUDA over Triton", 1.0, "missed")


@pytest.mark.parametrize("shape", [None, "qwen3.5-9b"])
def test_decoding_is_one_change_at_a_time(monkeypatch, shape):
    monkeypatch.setattr(decoding, "_TOKENS", 9)
    monkeypatch.setattr(decoding, "_REQUESTS", 2)
    monkeypatch.setattr(decoding, "_WINDOW", 4)
    monkeypatch.setattr(decoding, "_ACCEPTED", 3)
    model = decoding.make_model(SIZES)
    few = Session(CPU, "sm_90a", FixedTimer(1.0), repeats=2)
    lines = list(decoding._measure(few, "small", model, shape))
    rates = [line for line in lines if line.unit == "tokens/s"]
    assert [line.what.split(",")[0] for line in rates] == [
        "bf16",
        "+ FP8",
        "+ fusions",
        "+ graphs",
        "+ speculation",
    ]
    assert rates[0].gain is None
    for before, line in pairwise(rates):
        assert line.gain == pytest.approx(line.value / before.value)
    # Three of nine tokens are emitted at once: the first one came with the prompt.
    assert "windows of 4" in rates[-1].note
    steps = [line for line in lines if line.unit == "ms"]
    assert len(steps) == (0 if shape is None else 5)
    assert all("modelled" in line.note for line in steps)


def test_guesses_are_right_as_far_as_is_said():
    own = decoding._Own(accepted=3)
    own.answers = [[1, 2, 3, 4, 5, 6, 7]]
    assert own._guess([1, 2], 4) == (3, 4, 5 ^ 1, 6 ^ 1)
    assert own._guess([9], 4) == ()


def test_the_shipped_model_decodes_as_text():
    model = decoding._pico_text(CPU)
    assert model.text_config.vocab_size == model.tensors["model.language_model.embed_tokens.weight"].shape[0]


def said(text, code=0):
    return lambda command, limit: subprocess.CompletedProcess(command, code, text, None)


def test_counts_of_tests_are_read(monkeypatch):
    monkeypatch.setattr(
        suites, "_run", said("...\n1 failed, 40 passed, 3 skipped, 9 deselected in 2.00s\n", 1)
    )
    (line,) = suites.tests(session())
    assert (line.value, line.at_least, line.verdict) == (40, 41, "missed")
    monkeypatch.setattr(suites, "_run", said("== 40 passed, 3 skipped in 2.00s ==\n"))
    (line,) = suites.tests(session())
    assert line.verdict == "reached"
    monkeypatch.setattr(suites, "_run", said("no tests ran\n", 5))
    (line,) = suites.tests(session())
    assert line.not_measured == "no tests ran"


def test_the_sanitizers_summaries_are_read(monkeypatch):
    tools = ["memcheck", "racecheck", "synccheck"]
    monkeypatch.setattr(suites.shutil, "which", lambda name: None)
    lines = list(suites.sanitizer(session()))
    assert [line.what for line in lines] == tools
    assert {line.not_measured for line in lines} == {"compute-sanitizer is not installed"}
    monkeypatch.setattr(suites.shutil, "which", lambda name: name)
    passed = "30 passed, 2 deselected in 9.00s\n"
    words = {
        "memcheck": "========= ERROR SUMMARY: 0 errors\n",
        "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
        "synccheck": "========= ERROR SUMMARY: 2 errors\n",
    }

    def run(command, limit):
        return subprocess.CompletedProcess(command, 0, passed + words[command[2]], None)

    monkeypatch.setattr(suites, "_run", run)
    lines = list(suites.sanitizer(session()))
    assert [line.what.split(",")[0] for line in lines] == tools
    assert [line.verdict for line in lines] == ["reached", "reached", "missed"]
    assert lines[2].note == "2 errors, 30 tests passed, 0 failed"
    words["racecheck"] = "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n"
    assert [line.value for line in suites.sanitizer(session())] == [1, 0, 0]


def test_a_sanitizer_under_which_no_test_passed_has_not_measured(monkeypatch):
    monkeypatch.setattr(suites.shutil, "which", lambda name: name)
    monkeypatch.setattr(suites, "_run", said("40 skipped in 2.00s\n========= ERROR SUMMARY: 0 errors\n"))
    assert {line.not_measured for line in suites.sanitizer(session())} == {"no test passed under it"}
    monkeypatch.setattr(suites, "_run", said("compute-sanitizer: cannot attach\n", 1))
    assert next(suites.sanitizer(session())).not_measured == "no summary: compute-sanitizer: cannot attach"


def test_what_takes_too_long_is_ended(monkeypatch):
    def slow(command, limit):
        raise subprocess.TimeoutExpired(command, limit)

    monkeypatch.setattr(suites, "_run", slow)
    (line,) = suites.tests(session())
    assert line.not_measured == "not through after 240 s"


def test_the_build_says_what_spills(monkeypatch):
    monkeypatch.setattr(suites.cuda, "missing_compiler", lambda arch: "nvcc is not installed")
    (line,) = suites.build(session())
    assert line.not_measured == "nvcc is not installed"
    made = [
        cuda.resources.KernelResources("a", 32, 0, 0, 0, {}),
        cuda.resources.KernelResources("b", 255, 0, 8, 0, {}),
    ]
    monkeypatch.setattr(suites.cuda, "missing_compiler", lambda arch: "")
    monkeypatch.setattr(suites.cuda, "build", lambda arch: cuda.Build(arch, suites.Path("x.so"), tuple(made)))
    *_, line = suites.build(session())
    assert (line.value, line.at_least, line.verdict, line.note) == (1, 2, "missed", "b")
