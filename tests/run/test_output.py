"""When a text is up to date, and what a kill leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ocrquant.errors import OutputError, RunFolderError
from ocrquant.run.output import INDEX, OutputFolder, checkpoint_digest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scan.png"
    path.write_bytes(b"pixels")
    return path


def write(output: OutputFolder, source: Path, text: str = "words", settings: str = "s") -> None:
    output.write("a/scan.png", text, {**output.input_record(source), "settings": settings})


def is_done(folder: Path, source: Path, settings: str = "s") -> bool:
    with OutputFolder(folder) as output:
        return output.is_done("a/scan.png", source, settings)


@pytest.fixture
def written(tmp_path: Path, source: Path) -> Path:
    with OutputFolder(tmp_path / "out") as output:
        assert not output.is_done("a/scan.png", source, "s")
        write(output, source)
        assert output.is_done("a/scan.png", source, "s")
    return tmp_path / "out"


def test_a_text_is_written_and_known(written: Path, source: Path):
    assert (written / "a/scan.png.txt").read_bytes() == b"words\n"
    assert is_done(written, source)


def test_other_settings_other_input_or_no_text_is_not_done(written: Path, source: Path):
    assert not is_done(written, source, "other")
    source.write_bytes(b"pixelt")
    os.utime(source, ns=(1, 1))
    assert not is_done(written, source)
    source.write_bytes(b"pixels")
    assert is_done(written, source), "the content counts, not the time"
    (written / "a/scan.png.txt").unlink()
    assert not is_done(written, source)
    source.unlink()
    assert not is_done(written, source)


def test_a_kill_between_a_text_and_its_line_leaves_neither_done(written: Path, source: Path):
    with OutputFolder(written) as output:
        write(output, source, "other words", "t")
    assert is_done(written, source, "t")
    assert not is_done(written, source, "s")
    index = written / INDEX
    lines = index.read_text().splitlines()
    assert [json.loads(line).get("settings") for line in lines] == ["s", None, "t"]
    index.write_bytes(index.read_bytes()[:-5])
    assert not is_done(written, source, "t"), "its line is torn"
    assert not is_done(written, source, "s"), "its text is no longer there"


def test_what_a_killed_process_left_half_written_is_removed(written: Path, source: Path):
    leftover = written / "a" / ".scan.png.txt.123.part"
    leftover.write_text("wor")
    with OutputFolder(written) as output:
        write(output, source)
    assert not leftover.exists()


def test_an_empty_answer_is_an_empty_file(written: Path, source: Path):
    with OutputFolder(written) as output:
        write(output, source, "")
    assert (written / "a/scan.png.txt").read_bytes() == b""


def test_a_text_of_a_page_that_has_become_unreadable_is_dropped_and_a_strange_one_is_not(
    written: Path, source: Path
):
    (written / "mine.txt").write_text("x")
    with OutputFolder(written) as output:
        output.drop("a/scan.png")
        output.drop("mine")
    assert not (written / "a/scan.png.txt").exists()
    assert (written / "mine.txt").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path):
    with OutputFolder(tmp_path / "out"), pytest.raises(RunFolderError, match="another ocrquant"):
        OutputFolder(tmp_path / "out")


def test_a_folder_that_is_a_file_is_refused(source: Path):
    with pytest.raises(OutputError):
        OutputFolder(source)


def test_the_digest_of_a_checkpoint_is_that_of_its_files(tmp_path: Path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights").write_bytes(b"1234")
    first = checkpoint_digest(tmp_path)
    os.utime(tmp_path / "weights", ns=(1, 1))
    assert checkpoint_digest(tmp_path) == first
    (tmp_path / "weights").write_bytes(b"1235")
    assert checkpoint_digest(tmp_path) != first
    monkeypatch.setattr("ocrquant.run.output._HASHED_BYTES", 3)
    large = checkpoint_digest(tmp_path)
    os.utime(tmp_path / "weights", ns=(1, 1))
    assert checkpoint_digest(tmp_path) != large
