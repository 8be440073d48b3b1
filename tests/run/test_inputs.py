"""What a person may name, the names of the texts, kinds, and files that cannot be opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from ocrquant.errors import EncryptedPdfError, ImageError, PagesError, RequestError
from ocrquant.run.inputs import list_inputs
from tests.pages.conftest import build_pdf

PAGE = "BT /F 12 Tf 50 700 Td (Hello) Tj ET"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "scans"


def add(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".pdf":
            path.write_bytes(build_pdf([PAGE] * 2))
        else:
            Image.new("L", (12, 8)).save(path)


def names(*sources: object, **options: object) -> list[str]:
    return [page.name for page in list_inputs([str(source) for source in sources], **options)]


def test_folders_files_and_patterns_give_names_relative_to_what_was_named(folder: Path, monkeypatch):
    add(folder, "b.png", "a/one.jpg", "a/two.png", ".hidden/x.png")
    (folder / "notes.txt").write_text("no page")
    assert names(folder) == ["a/one.jpg", "a/two.png", "b.png"]
    assert names(folder / "a/two.png") == ["two.png"]
    assert names(folder / "*.png") == ["b.png"]
    assert names(folder / "**/*.png") == ["a/two.png", "b.png"]
    assert names(folder / "*") == ["a/one.jpg", "a/two.png", "b.png"]
    monkeypatch.chdir(folder)
    assert names("*/*.png", "b.png") == ["a/two.png", "b.png"]


def test_a_name_with_the_signs_of_a_pattern_is_a_name(folder: Path):
    add(folder, "page[1].png", "page1.png")
    assert names(folder / "page[1].png") == ["page[1].png"]


def test_pages_of_a_pdf_and_frames_of_a_tiff_have_numbers(folder: Path):
    folder.mkdir()
    (folder / "long.pdf").write_bytes(build_pdf([PAGE] * 11))
    frames = [Image.new("L", (12, 8), value) for value in (0, 255)]
    frames[0].save(folder / "scan.tif", save_all=True, append_images=frames[1:])
    add(folder, "one.tif", "short.pdf")
    found = list_inputs([str(folder)], dpi=96)
    assert [page.name for page in found] == [
        *(f"long.pdf-{number:02}" for number in range(1, 12)),
        "one.tif",
        "scan.tif-1",
        "scan.tif-2",
        "short.pdf-1",
        "short.pdf-2",
    ]
    assert [page.image.index for page in found][:3] == [0, 1, 2]
    assert found[0].image.dpi == 96


def test_a_page_that_is_named_twice_is_read_once(folder: Path):
    add(folder, "a.png", "b.png")
    assert names(folder / "b.png", folder, folder / "*.png") == ["b.png", "a.png"]


def test_two_pages_of_one_name_are_refused(folder: Path):
    add(folder, "a/x.png", "b/x.png")
    with pytest.raises(PagesError, match=r"b/x\.png.*x\.png again, as of .*a/x\.png"):
        names(folder / "a", folder / "b")


def test_files_that_cannot_be_opened_become_pages_with_an_error(folder: Path):
    add(folder, "good.pdf")
    (folder / "broken.pdf").write_bytes(b"no PDF")
    (folder / "broken.tif").write_bytes(b"no TIFF")
    (folder / "locked.pdf").write_bytes(build_pdf([PAGE], password="secret"))
    found = {page.name: type(page.error) for page in list_inputs([str(folder)])}
    assert found == {
        "broken.pdf": ImageError,
        "broken.tif": ImageError,
        "good.pdf-1": type(None),
        "good.pdf-2": type(None),
        "locked.pdf": EncryptedPdfError,
    }


@pytest.mark.parametrize("what", ["missing.png", "*.gif", "empty", "text.txt"])
def test_a_source_without_pages_is_refused(folder: Path, what):
    (folder / "empty").mkdir(parents=True)
    (folder / "text.txt").write_text("x")
    with pytest.raises(PagesError, match="at least one image or PDF"):
        names(folder / what)


def write_kinds(folder: Path, **kinds: str) -> None:
    lines = [json.dumps({"file_name": f"{name}.png", "kind": kind}) for name, kind in kinds.items()]
    (folder / "metadata.jsonl").write_text("\n".join(lines))


def kinds_of(source: Path, **options: object) -> dict[str, str]:
    return {page.name: page.kind for page in list_inputs([str(source)], **options)}


def test_kinds_come_from_the_nearest_metadata(folder: Path):
    add(folder, "a/one.png", "a/two.png", "b/three.png", "four.png")
    assert set(kinds_of(folder).values()) == {"page"}
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "a/one.png", "kind": "block"}\n{"file_name": "b/three.png", "kind": "block"}\n'
        '{"file_name": "gone.png", "kind": "block"}'
    )
    write_kinds(folder / "a", one="line")
    expected = {"a/one.png": "line", "a/two.png": "page", "b/three.png": "block", "four.png": "page"}
    assert kinds_of(folder) == expected
    assert kinds_of(folder / "b") == {"three.png": "block"}
    assert kinds_of(folder / "b" / "*.png") == {"three.png": "block"}
    assert set(kinds_of(folder, kind="line").values()) == {"line"}


def test_metadata_far_above_says_nothing(folder: Path):
    add(folder, "a/b/one.png")
    (folder / "metadata.jsonl").write_text('{"file_name": "a/b/one.png", "kind": "line"}')
    assert kinds_of(folder / "a") == {"b/one.png": "line"}
    assert kinds_of(folder / "a" / "b") == {"one.png": "page"}


def test_malformed_metadata_is_refused_unless_the_kind_is_stated(folder: Path):
    add(folder, "one.png")
    write_kinds(folder, one="poster")
    with pytest.raises(PagesError, match="poster"):
        names(folder)
    assert kinds_of(folder, kind="line") == {"one.png": "line"}


@pytest.mark.parametrize("options", [{"kind": "poster"}, {"dpi": 0}])
def test_options_out_of_range_are_refused(folder: Path, options):
    add(folder, "one.png")
    with pytest.raises(RequestError):
        names(folder, **options)
