"""The command: texts, resuming, failures, what is printed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from ocrquant.adapters import model_folder
from ocrquant.cli import app
from ocrquant.engine import Transcriber
from ocrquant.models.processing import open_processor
from tests.engine.drafters import make_drafter
from tests.engine.pages_on_disk import is_alive
from tests.engine.reading import CROPS, crops
from tests.pages.conftest import build_pdf

ROOT = Path(__file__).parents[2]
RUNNER = CliRunner()
SECONDS = 120.0


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Eight lines as the crops have them."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for record in crops("line")[:8]:
        shutil.copy(CROPS / record["file_name"], folder)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(*arguments: object, code: int = 0):
    result = RUNNER.invoke(app, ["run", "pico", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def texts(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.txt")}


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_bytes())


LINES = ("--kind", "line", "--workers", "0")


def test_one_text_a_page_with_the_words_of_the_page(scans: Path, out: Path):
    result = run(scans, "--out", out, *LINES)
    truth = {Path(r["file_name"]).name + ".txt": r["text"] for r in crops("line")[:8]}
    written = texts(out)
    assert written.keys() == truth.keys()
    assert sum(written[name].decode() == f"{truth[name]}\n" for name in truth) >= 5
    found = summary(out)
    assert found["num_read"] == 8
    assert found["finish_reasons"] == {"end": 8}
    assert found["num_tokens"] > 100
    assert found["first_token_seconds_median"] > 0
    for word in ("8 pages: 8 read", "tokens/s", "first token after"):
        assert word in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "more", [["--workers", "1", "--requests", "1"], ["--workers", "2", "--requests", "3"]]
)
def test_workers_and_batches_change_no_byte(scans: Path, out: Path, tmp_path: Path, more):
    run(scans, "--out", out, *LINES)
    run(scans, "--out", tmp_path / "other", "--kind", "line", *more)
    assert texts(tmp_path / "other") == texts(out)


def test_only_what_has_changed_is_read_again(scans: Path, out: Path):
    run(scans, "--out", out, *LINES)
    first = texts(out)
    names = sorted(path.name for path in scans.iterdir())
    (out / f"{names[1]}.txt").unlink()
    shutil.copy(scans / names[3], scans / names[2])
    (out / f"{names[5]}.txt").write_text("corrected by hand")
    result = run(scans, "--out", out, *LINES)
    assert "2 read, 6 skipped" in result.stdout
    second = texts(out)
    assert second[f"{names[1]}.txt"] == first[f"{names[1]}.txt"]
    assert second[f"{names[2]}.txt"] == first[f"{names[3]}.txt"]
    assert second[f"{names[5]}.txt"] == b"corrected by hand"
    assert "8 read" in run(scans, "--out", out, *LINES, "--force").stdout
    assert texts(out)[f"{names[5]}.txt"] == first[f"{names[5]}.txt"]
    assert "8 skipped" in run(scans, "--out", out, *LINES, "--requests", "2", "--prefix-cache", "1").stdout
    assert "8 read" in run(scans, "--out", out, *LINES, "--max-tokens", "3").stdout
    assert summary(out)["cut_short"] == names


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ocrquant", "run", "pico", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def children(process_id: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process_id)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ps") is None, reason="lists child processes")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_stopped_run_goes_on_and_leaves_the_same_files(scans: Path, out: Path, tmp_path: Path, how):
    run(scans, "--out", tmp_path / "whole", *LINES)
    process = start(scans, "--out", out, "--kind", "line", "--workers", "2", "--requests", "1")
    end = time.monotonic() + SECONDS
    while len(texts(out)) < 2:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.005)
    workers = children(process.pid)
    os.killpg(process.pid, how)
    _, errors = process.communicate(timeout=SECONDS)
    done = texts(out)
    assert 2 <= len(done) < 8
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines() == ["interrupted; run the same command again to go on"]
    while any(map(is_alive, workers)):
        assert time.monotonic() < end
        time.sleep(0.005)
    run(scans, "--out", out, *LINES)
    # The page in progress may have had its text but not its line in the index.
    assert summary(out)["num_skipped"] in (len(done) - 1, len(done))
    assert texts(out) == texts(tmp_path / "whole")
    assert not [path for path in out.rglob("*.part")]


def test_damaged_pages_fail_alone(scans: Path, out: Path):
    good = len(list(scans.iterdir()))
    whole = (scans / next(os.walk(scans))[2][0]).read_bytes()
    (scans / "cut.png").write_bytes(whole[: len(whole) // 2])
    (scans / "empty.png").write_bytes(b"")
    (scans / "locked.pdf").write_bytes(build_pdf(["BT ET"], password="secret"))
    Image.new("L", (4000, 2)).save(scans / "narrow.png")
    result = run(scans, "--out", out, *LINES, code=16)
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1
    for word in ("error: 4 of 12 pages", "cut.png", "summary.json"):
        assert word in lines[0]
    assert len(texts(out)) == good
    assert "8 read, 4 failed" in result.stdout
    assert list(summary(out)["failed"]) == ["cut.png", "empty.png", "locked.pdf", "narrow.png"]
    # Failed pages are tried again; what has become good is read.
    (scans / "cut.png").write_bytes(whole)
    assert "1 read, 8 skipped, 3 failed" in run(scans, "--out", out, *LINES, code=16).stdout


def test_a_page_that_has_become_unreadable_keeps_no_old_text(scans: Path, out: Path):
    run(scans, "--out", out, *LINES)
    victim = sorted(scans.iterdir())[0]
    victim.write_bytes(b"damaged")
    run(scans, "--out", out, *LINES, code=16)
    assert f"{victim.name}.txt" not in texts(out)
    assert len(texts(out)) == 7


def test_every_page_of_a_pdf_is_read(out: Path, tmp_path: Path):
    words = ["The first of them", "The second of them", "The third of them"]
    pages = [f"BT /F 14 Tf 10 10 Td ({line}) Tj ET" for line in words]
    (tmp_path / "three.pdf").write_bytes(build_pdf(pages, size=(180, 30)))
    run(tmp_path / "three.pdf", "--out", out, *LINES, "--dpi", "120")
    written = texts(out)
    assert list(sorted(written)) == [f"three.pdf-{number}.txt" for number in (1, 2, 3)]
    read = [written[name].decode().strip() for name in sorted(written)]
    assert sum(text == line for text, line in zip(read, words, strict=True)) >= 2, read


def test_kinds_and_prompts_choose_the_instruction(scans: Path, out: Path, monkeypatch):
    asked = []
    read = Transcriber.read

    def spy(self, pages, sampling):
        pages = list(pages)
        asked.extend(page.kind for page in pages)
        return read(self, iter(pages), sampling)

    monkeypatch.setattr(Transcriber, "read", spy)
    page = sorted(scans.iterdir())[0]
    run(page, "--out", out, *LINES)
    (scans / "metadata.jsonl").write_text(json.dumps({"file_name": page.name, "kind": "line"}))
    assert "1 skipped" in run(page, "--out", out, "--workers", "0").stdout
    (scans / "metadata.jsonl").write_text(json.dumps({"file_name": page.name, "kind": "block"}))
    assert "1 read" in run(page, "--out", out, "--workers", "0").stdout
    assert "1 read" in run(page, "--out", out, "--workers", "0", "--prompt", "Read the line.").stdout
    assert asked[:2] == ["line", "block"]
    assert asked[2] == open_processor(model_folder("pico")).prompt("Read the line.")


def test_stop_strings_and_sampling_reach_the_engine(scans: Path, out: Path):
    run(scans, "--out", out, *LINES, "--stop", " ")
    assert not any(b" " in text for text in texts(out).values())
    assert summary(out)["finish_reasons"]["stop"] >= 5
    run(scans, "--out", out, *LINES, "--temperature", "3", "--seed", "5", "--max-tokens", "8")
    drawn = texts(out)
    run(scans, "--out", out, *LINES, "--temperature", "3", "--seed", "6", "--max-tokens", "8")
    assert texts(out) != drawn


def test_what_runs_is_said_on_demand(scans: Path, out: Path):
    page = sorted(scans.iterdir())[0]
    result = run(page, "--out", out, *LINES, "--explain")
    for word in ("activations asked", "lm_head", "paged_attention", "memory: weights", "1 read"):
        assert word in result.stdout
    assert "none has run yet" not in result.stdout
    assert "activations asked" in run(page, "--out", out, *LINES, "--explain").stdout


def test_what_guessing_brought_is_said_and_changes_no_text(scans: Path, out: Path, tmp_path: Path):
    run(scans, "--out", out, *LINES)
    drafter, guessed = tmp_path / "drafter", tmp_path / "guessed"
    make_drafter(drafter, model_folder("pico"))
    asked = ("--speculation", "drafter", "--drafter", drafter, "--window", 4, "--stats")
    result = run(scans, "--out", guessed, *LINES, *asked)
    assert texts(guessed) == texts(out)
    for words in (
        "windows of up to 4 rows",
        "tokens a step 1.",
        "  line: 1.",
        "accepted by position",
        "verify",
    ):
        assert words in result.stdout
    found = summary(guessed)["guesses"]
    assert found["windows"] > 100
    assert found["tokens_a_step_by_kind"]["line"] == found["tokens_a_step"]
    # Guesses are no reason to read again.
    assert summary(out)["guesses"] == {}
    run(scans, "--out", guessed, *LINES)
    assert summary(guessed)["num_skipped"] == 8


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--requests", "0"], 28, ["max_requests"]),
        (["--max-length", "100000"], 28, ["max_length"]),
        (["--workers", "99"], 28, ["workers", "64"]),
        (["--top-p", "0"], 29, ["top_p"]),
        (["--max-tokens", "0"], 29, ["max_tokens"]),
        (["--dpi", "0"], 29, ["dpi"]),
        (["--device", "cuda:7"], 25, ["cuda:7"]),
        (["--prefix-cache", "-1"], 28, ["prefix_cache"]),
        (["--speculation", "drafter"], 28, ["drafter", "a folder"]),
        (["--speculation", "drafter", "--drafter", "/nowhere"], 12, ["/nowhere", "pico-dflash2"]),
        (["--speculation", "ngram", "--window", "0"], 28, ["window"]),
    ],
)
def test_values_out_of_range_are_refused_in_one_line(scans: Path, out: Path, arguments, code, words):
    result = run(scans, "--out", out, "--kind", "line", *arguments, code=code)
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1
    for word in ("error:", *words):
        assert word in lines[0]
    assert not texts(out)


def test_a_missing_checkpoint_and_missing_pages_are_refused(scans: Path, out: Path):
    result = RUNNER.invoke(app, ["run", "/nowhere/model", str(scans), "--out", str(out)])
    assert (result.exit_code, out.exists()) == (12, False)
    run(scans / "absent.png", "--out", out, code=16)
    assert not out.exists()
