import os

import pytest

from ocrquant.artifacts.digests import DigestCache, sha256_bytes, sha256_data, sha256_file
from ocrquant.errors import ArtifactError

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1


def test_published_value(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_bytes(b"abc") == sha256_file(tmp_path / "a") == ABC


def test_file_longer_than_a_chunk(tmp_path):
    data = bytes(range(256)) * 8192 + b"tail"
    (tmp_path / "a").write_bytes(data)
    assert sha256_file(tmp_path / "a") == sha256_bytes(data)


def test_data_ignores_key_order_and_nothing_else():
    assert sha256_data({"a": 1, "b": 2}) == sha256_data({"b": 2, "a": 1})
    assert len({sha256_data(v) for v in ({"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": [1]}, [1, 2], [2, 1])}) == 6


def test_data_refuses_nan():
    with pytest.raises(ValueError, match="JSON"):
        sha256_data(float("nan"))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ArtifactError, match="gone: expected a readable file"):
        sha256_file(tmp_path / "gone")
    with pytest.raises(ArtifactError, match="gone: expected a readable file"):
        DigestCache(tmp_path / "cache").file(tmp_path / "gone")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights").write_text("w")
    (folder / ".git").mkdir()
    (folder / ".git" / "head").write_text("x")
    return folder


def test_folder_digest_follows_names_and_bytes_but_not_hidden_files(model, tmp_path):
    cache = DigestCache(tmp_path / "cache.json")
    first = cache.folder(model)
    (model / ".git" / "head").write_text("y")
    assert cache.folder(model) == first
    (model / "sub" / "weights").rename(model / "sub" / "weight")
    renamed = cache.folder(model)
    (model / "sub" / "weight").write_text("v2")
    assert len({first, renamed, cache.folder(model)}) == 3


def test_cache_answers_without_reading_and_sees_a_change(model, tmp_path):
    file = model / "config.json"
    first = DigestCache(tmp_path / "cache.json").file(file)
    status = file.stat()
    file.write_text("[]")  # the same size
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert DigestCache(tmp_path / "cache.json").file(file) == first
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert DigestCache(tmp_path / "cache.json").file(file) == sha256_bytes(b"[]")


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"a": 1}'])
def test_broken_cache_only_costs_time(model, tmp_path, broken):
    (tmp_path / "cache.json").write_bytes(broken)
    assert DigestCache(tmp_path / "cache.json").file(model / "config.json") == sha256_bytes(b"{}")


@pytest.mark.parametrize(("name", "given"), [("gone", "nothing"), ("model/config.json", "a file")])
def test_folder_must_be_one(model, tmp_path, name, given):
    with pytest.raises(ArtifactError, match=f"expected a folder, got {given}"):
        DigestCache(tmp_path / "cache").folder(tmp_path / name)
