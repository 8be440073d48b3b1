import errno
import os

import pytest
import torch

from ocrquant.artifacts.atomic import (
    atomic_folder,
    atomic_path,
    output_error,
    remove_temporaries,
    write_bytes,
    write_tensors,
)
from ocrquant.errors import OutputError, PagesError


def test_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path, names):
    path = tmp_path / "deep" / "a.json"
    write_bytes(path, b"long old content")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["a.json"]


@pytest.mark.parametrize("raised", [PagesError("x"), KeyboardInterrupt(), ValueError("x")])
def test_failure_inside_leaves_the_old_file_and_passes_on(tmp_path, names, raised):
    path = tmp_path / "a"
    write_bytes(path, b"old")

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise raised

    with pytest.raises(type(raised)):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_full_disk_is_an_output_error_and_the_old_file_stays(tmp_path, names, file_size_limit):
    path = tmp_path / "a"
    write_bytes(path, b"old")
    with file_size_limit(1000), pytest.raises(OutputError, match=r"a: expected .*file too large"):
        write_bytes(path, b"x" * 5000)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_full_disk_while_tensors_are_written(tmp_path, names, file_size_limit):
    with file_size_limit(1000), pytest.raises(OutputError, match="t.safetensors"):
        write_tensors(tmp_path / "t.safetensors", {"a": torch.zeros(4096)})
    assert names(tmp_path) == []


def test_folder_that_is_not_writable(tmp_path, as_nobody):
    tmp_path.chmod(0o555)
    text = as_nobody(lambda: write_bytes(tmp_path / "a", b"x"))
    assert text.startswith("OutputError: ")
    assert "permission denied; make the folder writable" in text


def test_parent_that_is_a_file(tmp_path):
    (tmp_path / "a").write_text("x")
    with pytest.raises(OutputError, match="name an output folder"):
        write_bytes(tmp_path / "a" / "b", b"x")


def test_folder_in_the_place_of_the_file(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OutputError, match="remove the folder"):
        write_bytes(tmp_path / "a", b"x")


def test_causes_are_told_apart():
    fixes = {str(output_error("x", OSError(code, os.strerror(code)))) for code in (errno.ENOSPC, errno.EROFS)}
    assert any("no space left on device; free some space" in fix for fix in fixes)
    assert len(fixes) == 2


def test_equal_tensors_give_equal_bytes_in_any_order(tmp_path):
    tensors = {f"t{i}": torch.full((3,), float(i)) for i in range(20)} | {
        "h": torch.ones(2, dtype=torch.bfloat16)
    }
    write_tensors(tmp_path / "a", tensors)
    write_tensors(tmp_path / "b", dict(reversed(tensors.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_tensors_that_are_views_are_written_by_value(tmp_path):
    from safetensors.torch import load_file

    base = torch.arange(12.0).reshape(3, 4)
    write_tensors(tmp_path / "a", {"t": base.T, "row": base[1], "grad": base.clone().requires_grad_()})
    loaded = load_file(tmp_path / "a")
    assert torch.equal(loaded["t"], base.T)
    assert torch.equal(loaded["row"], base[1])
    assert (tmp_path / "a").stat().st_mode & 0o444 == 0o444 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_folder_is_replaced_as_a_whole(tmp_path, names):
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "checkpoint") as folder:
            (folder / "sub").mkdir()
            (folder / "sub" / content).write_text(content)
    assert names(tmp_path) == ["checkpoint"]
    assert names(tmp_path / "checkpoint" / "sub") == ["new"]


def test_failed_folder_leaves_the_old_one(tmp_path, names, file_size_limit):
    with atomic_folder(tmp_path / "c") as folder:
        (folder / "a").write_text("old")
    with file_size_limit(100), pytest.raises(OutputError), atomic_folder(tmp_path / "c") as folder:
        (folder / "a").write_bytes(b"x" * 1000)
    assert (tmp_path / "c" / "a").read_text() == "old"
    assert names(tmp_path) == ["c"]


def test_folder_does_not_replace_a_file(tmp_path):
    (tmp_path / "c").write_text("mine")
    with pytest.raises(OutputError, match="name an output folder, not a file"), atomic_folder(tmp_path / "c"):
        pass
    assert (tmp_path / "c").read_text() == "mine"


def test_temporaries_of_a_killed_process_go_and_other_files_stay(tmp_path, names):
    for name in (".a.json.7.part", "a.part", ".hidden", "b.json"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".checkpoint.7.part").mkdir()
    remove_temporaries(tmp_path)
    assert names(tmp_path) == [".hidden", "a.part", "b.json"]
