import csv
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from ocrquant.errors import ImageError, PagesError, SplitError
from ocrquant.pages import validate, write_manifest
from ocrquant.pages.load import page_digest

SHIPPED = Path(__file__).parents[2] / "calibration_data"


@pytest.fixture
def folder(tmp_path):
    rows = []
    for n in range(4):
        Image.new("L", (20 + n, 10), 40 * n).save(tmp_path / f"{n}.png")
        split = "heldout" if n == 3 else "calibration"
        rows.append(
            {"file_name": f"{n}.png", "text": f"t{n}", "document": f"d{n}", "kind": "line", "split": split}
        )
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_manifest(tmp_path)
    return tmp_path


def edit_rows(folder, change):
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    (folder / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in change(rows)))


def test_manifest_says_what_there_is(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["counts"] == [
        {"split": "calibration", "kind": "line", "num_pages": 3, "num_documents": 3, "num_characters": 6},
        {"split": "heldout", "kind": "line", "num_pages": 1, "num_documents": 1, "num_characters": 2},
    ]
    assert manifest["digests"] == {page.id: page_digest(page) for page in validate(folder)}


@pytest.mark.parametrize("fault", ["pixels", "text", "missing", "added", "split"])
def test_a_change_is_found(folder, fault):
    if fault == "pixels":
        Image.new("L", (21, 10), 41).save(folder / "1.png")
    elif fault == "text":
        edit_rows(
            folder, lambda rows: [{**row, "text": "tl"} if row["text"] == "t1" else row for row in rows]
        )
    elif fault == "missing":
        (folder / "1.png").unlink()
        edit_rows(folder, lambda rows: [row for row in rows if row["file_name"] != "1.png"])
    elif fault == "added":
        shutil.copy(folder / "1.png", folder / "10.png")
        edit_rows(folder, lambda rows: [*rows, {**rows[1], "file_name": "10.png"}])
    else:
        edit_rows(
            folder, lambda rows: [{**row, "split": "heldout"} if row["text"] == "t1" else row for row in rows]
        )
    with pytest.raises(
        PagesError, match=r"page 10?.png: expected digest|expected the totals of the manifest"
    ):
        validate(folder)


def test_pixels_that_cannot_be_decoded(folder):
    data = (folder / "1.png").read_bytes()
    (folder / "1.png").write_bytes(data[:45])
    write_manifest(folder)
    with pytest.raises(ImageError, match=r"^1.png: expected a readable image"):
        validate(folder)


def test_one_page_under_two_documents_in_both_splits(folder):
    shutil.copy(folder / "1.png", folder / "3.png")
    edit_rows(folder, lambda rows: [{**row, "text": "same"} for row in rows])
    write_manifest(folder)
    with pytest.raises(SplitError, match=r"expected no page in both splits, got 1.png = 3.png; remove"):
        validate(folder)


def test_no_manifest_and_a_malformed_one(folder):
    (folder / "manifest.json").write_text('{"schema_version": 1}')
    with pytest.raises(PagesError, match=r"manifest.json: expected a manifest, got Field required; write it"):
        validate(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(PagesError, match=r"manifest.json: expected a manifest, got No such file"):
        validate(folder)


@pytest.fixture(scope="module")
def shipped():
    return validate(SHIPPED)


def test_shipped_pages_hold_what_they_promise(shipped):
    counts = {(split, kind): 0 for split in ("calibration", "heldout") for kind in ("line", "block")}
    for page in shipped:
        counts[page.split, page.kind] += 1
    assert min(counts.values()) >= 40
    assert all(page.text and page.truth_source == "ground_truth" for page in shipped)
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 3_000_000


def test_shipped_pages_have_provenance_and_a_free_licence(shipped):
    with (SHIPPED / "provenance.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["document"]: row for row in csv.DictReader(file)}
    assert set(rows) == {page.document for page in shipped}
    free = {"lppl", "lppl1.2", "lppl1.3", "lppl1.3c", "GPL-2+", "gpl3+", "pd", "mit", "isc", "bsd2"}
    readme = (SHIPPED / "README.md").read_text(encoding="utf-8")
    for name, row in rows.items():
        mine = [page for page in shipped if page.document == name]
        assert row["licence"] in free
        assert f"| {row['licence']} |" in readme
        assert all(row[key] for key in ("file", "package", "version", "source_package", "licence_stated_in"))
        assert len(row["sha256"]) == 64
        assert {page.split for page in mine} == {row["split"]}
        kinds = [page.kind for page in mine]
        assert (kinds.count("line"), kinds.count("block")) == (int(row["num_lines"]), int(row["num_blocks"]))


def test_groups_of_shipped_documents_lie_on_one_side():
    with (SHIPPED / "provenance.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sides = {}
    for row in rows:
        sides.setdefault(row["group"], set()).add(row["split"])
    assert all(len(side) == 1 for side in sides.values())
