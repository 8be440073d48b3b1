import signal
import subprocess
import sys
import time

import pytest
import torch

from ocrquant.artifacts.resume import Journal, PartialStage
from ocrquant.errors import ArtifactError, OutputError

A = {"model": "a" * 64}
B = {"model": "b" * 64}


def test_journal_returns_records_in_order_as_they_were(tmp_path):
    journal = Journal(tmp_path / "deep" / "j.jsonl")
    assert journal.read() == []
    records = [{"page": "a\nb", "value": 0.1}, {"page": "ü", "value": None}]
    for record in records:
        journal.append(record)
    assert journal.read() == Journal(tmp_path / "deep" / "j.jsonl").read() == records


def test_journal_survives_a_kill_at_every_byte(tmp_path):
    path = tmp_path / "j.jsonl"
    for number in range(3):
        Journal(path).append({"n": number})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        num_complete = whole[:length].count(b"\n")
        assert Journal(path).read() == [{"n": n} for n in range(num_complete)]
        Journal(path).append({"n": num_complete})
        assert path.read_bytes() == whole[: len(path.read_bytes())]
        assert len(Journal(path).read()) == num_complete + 1


def test_malformed_line_in_the_middle_is_refused(tmp_path):
    (tmp_path / "j").write_bytes(b'{"n": 0}\n{"n": \n{"n": 2}\n')
    with pytest.raises(ArtifactError, match="j: expected a JSON record a line"):
        Journal(tmp_path / "j").read()


def test_full_disk_leaves_the_journal_as_it_was(tmp_path, file_size_limit):
    journal = Journal(tmp_path / "j")
    journal.append({"n": 0})
    before = (tmp_path / "j").read_bytes()
    with file_size_limit(100), pytest.raises(OutputError, match="j: expected"):
        journal.append({"text": "x" * 1000})
    assert (tmp_path / "j").read_bytes() == before
    journal.append({"n": 1})
    assert journal.read() == [{"n": 0}, {"n": 1}]


def test_journal_of_a_killed_process_can_be_continued(tmp_path):
    code = """
import itertools, sys
from pathlib import Path
from ocrquant.artifacts.resume import Journal
journal = Journal(Path(sys.argv[1]))
for n in itertools.count(): journal.append({"n": n, "filler": "x" * 3000})
"""
    path = tmp_path / "j"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > 30_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    count = len(Journal(path).read())
    assert count >= 9
    Journal(path).append({"n": count})
    assert [record["n"] for record in Journal(path).read()] == list(range(count + 1))


def test_parts_are_kept_for_the_same_inputs_only(tmp_path):
    stage = PartialStage(tmp_path / "s", A)
    stage.write("page-1", {"x": torch.arange(3)})
    stage.journal("pages").append({"n": 1})
    again = PartialStage(tmp_path / "s", dict(A))
    assert again.names() == ["page-1"]
    assert torch.equal(again.read("page-1")["x"], torch.arange(3))
    assert again.journal("pages").read() == [{"n": 1}]
    other = PartialStage(tmp_path / "s", B)
    assert other.names() == []
    assert other.read("page-1") is None
    assert other.journal("pages").read() == []


def test_part_is_replaced_and_discarded(tmp_path):
    stage = PartialStage(tmp_path / "s", A)
    stage.write("sum", {"x": torch.zeros(1)})
    stage.write("sum", {"x": torch.ones(1)})
    assert stage.read("sum")["x"].item() == 1
    stage.discard()
    assert not (tmp_path / "s").exists()
    stage.discard()


def test_folder_without_a_key_counts_as_another_stage(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "old.safetensors").write_bytes(b"torn")
    assert PartialStage(tmp_path / "s", A).names() == []
