import json
from importlib import metadata
from typing import ClassVar

import pytest

import ocrquant
from ocrquant.artifacts.base import Artifact, FileRecord, FrozenModel, Producer, render_json
from ocrquant.artifacts.digests import sha256_bytes
from ocrquant.errors import ArtifactError

SHA = "0" * 64


class Row(FrozenModel):
    name: str
    value: float


class Sample(Artifact):
    FILE_NAME: ClassVar[str] = "sample.json"
    SCHEMA_VERSION: ClassVar[int] = 3
    STAGE: ClassVar[str] = "sampling"

    rows: list[Row]


SAMPLE = Sample(inputs={"pages": SHA}, rows=[Row(name="ä", value=0.1), Row(name="b", value=1e-30)])


def test_what_is_saved_is_loaded_from_the_file_and_from_the_folder(tmp_path):
    path = SAMPLE.save(tmp_path)
    assert path == tmp_path / "sample.json"
    assert Sample.load(path) == Sample.load(tmp_path) == SAMPLE


def test_header_tells_kind_version_producer_and_inputs():
    data = json.loads(SAMPLE.render())
    assert list(data) == ["artifact", "schema_version", "producer", "inputs", "rows"]
    assert (data["artifact"], data["schema_version"], data["inputs"]) == ("sample", 3, {"pages": SHA})
    assert data["producer"]["ocrquant"] == ocrquant.__version__
    assert data["producer"]["torch"] == metadata.version("torch")


def test_absent_library_is_said_to_be_absent(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert Producer.current().torch == "absent"


def test_text_has_one_line_for_each_row():
    text = render_json({"a": {"b": 1}, "rows": [{"x": 1}, {"x": 2}], "empty": []})
    assert text == '{\n "a": {"b": 1},\n "rows": [\n  {"x": 1},\n  {"x": 2}\n ],\n "empty": []\n}\n'
    assert json.loads(text) == {"a": {"b": 1}, "rows": [{"x": 1}, {"x": 2}], "empty": []}


def edited(**changes):
    data = json.loads(SAMPLE.render()) | changes
    return json.dumps({key: value for key, value in data.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a sample file"),
        ('{"artifact": ', "line 1"),
        ("[]", "no key 'artifact'; mend the file, or delete it"),
        (edited(inputs=None), "no key 'inputs'"),
        (edited(artifact="pages"), "expected a sample file, got a pages file"),
        (edited(artifact="assignment"), "got an assignment file; mend the file, or delete it"),
        (edited(schema_version=2), "schema_version: expected 3, got 2; delete the file"),
        (edited(rows=None), "sample.json: rows: expected .*, got nothing"),
        (edited(rows=[{"name": "a"}]), r"rows\[0\]\.value: expected .*, got nothing"),
        (edited(rows=[{"name": "a", "value": "x"}]), r"rows\[0\]\.value: expected .*, got 'x'"),
        (edited(rows=[{"name": "a", "value": 1, "z": 1}]), r"rows\[0\]\.z: .*an unknown key"),
        (edited(inputs={"pages": "abc"}), "inputs.pages"),
        (edited(zzz=1), "zzz: .*an unknown key"),
        (edited().replace("0.1", "NaN"), r"rows\[0\]\.value"),
    ],
)
def test_malformed_file_is_refused_by_name_and_key(tmp_path, text, message):
    (tmp_path / "sample.json").write_text(text, encoding="utf-8")
    with pytest.raises(ArtifactError, match=message) as caught:
        Sample.load(tmp_path)
    assert "sample.json" in str(caught.value)


def test_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "sample.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="expected a sample file"):
        Sample.load(tmp_path)


def test_missing_file_names_the_stage_that_writes_it(tmp_path):
    with pytest.raises(ArtifactError, match="got nothing; run the stage `sampling` first"):
        Sample.load(tmp_path)


def test_nan_cannot_be_put_into_an_artifact():
    with pytest.raises(ValueError, match="finite"):
        Row(name="a", value=float("nan"))
    with pytest.raises(ValueError, match="JSON"):
        render_json({"a": float("inf")})


def test_file_record(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert FileRecord.of(tmp_path / "a") == FileRecord(sha256=sha256_bytes(b"abc"), num_bytes=3)
