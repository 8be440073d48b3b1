import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ocrquant.errors import ImageError, PagesError, SplitError
from ocrquant.pages import load_pages, page_digest, page_image


def png(value, size=(6, 4)):
    buffer = io.BytesIO()
    Image.new("L", size, value).save(buffer, "PNG")
    return buffer.getvalue()


def rows(count=4, *, as_struct=True):
    return {
        "image": [{"bytes": png(n), "path": f"{n}.png"} if as_struct else png(n) for n in range(count)],
        "text": [f"text {n}" for n in range(count)],
        "kind": ["line" if n % 2 else "block" for n in range(count)],
        "doc": [f"d{n}" for n in range(count)],
        "split": ["calib" if n % 2 else "heldout" for n in range(count)],
        "extra": list(range(count)),
    }


@pytest.mark.parametrize("as_struct", [True, False])
def test_parquet_file(tmp_path, as_struct):
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.table(rows(as_struct=as_struct)), path, row_group_size=2)
    pages = load_pages(path)
    assert [(p.id, p.document, p.kind, p.split, p.text, p.width, p.height) for p in pages] == [
        ("pages:0", "d0", "block", "heldout", "text 0", 6, 4),
        ("pages:1", "d1", "line", "calibration", "text 1", 6, 4),
        ("pages:2", "d2", "block", "heldout", "text 2", 6, 4),
        ("pages:3", "d3", "line", "calibration", "text 3", 6, 4),
    ]
    assert [page_image(page).getpixel((0, 0))[0] for page in pages] == [0, 1, 2, 3]


def test_rewritten_parquet_is_read_again(tmp_path):
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.table(rows()), path)
    before = load_pages(path)
    digests = [page_digest(page) for page in before]
    changed = rows()
    changed["image"] = [png(100 + n, (30, 20)) for n in range(4)]
    pq.write_table(pa.table(changed), path)
    assert page_image(before[1]).getpixel((0, 0))[0] == 101
    assert not set(digests) & {page_digest(page) for page in load_pages(path)}


def test_same_pages_in_files_and_tables_have_the_same_digests(tmp_path):
    pq.write_table(pa.table(rows()), tmp_path / "pages.parquet")
    folder = tmp_path / "files"
    folder.mkdir()
    for n in range(4):
        (folder / f"{n}.png").write_bytes(png(n))
        (folder / f"{n}.txt").write_text(f"text {n}\n")
    digests = [page_digest(page) for page in load_pages(folder)]
    assert [page_digest(page) for page in load_pages(tmp_path / "pages.parquet")] == digests


def test_folder_of_parquet_files_with_splits_in_their_names(tmp_path):
    for name in ("data/train-00000-of-00001", "data/test-00000-of-00001"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        table = {"image": [png(len(name))], "text": [name]}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    pages = load_pages(tmp_path)
    assert [(p.id, p.split, p.kind) for p in pages] == [
        ("data/test-00000-of-00001:0", "heldout", "page"),
        ("data/train-00000-of-00001:0", "calibration", "page"),
    ]


@pytest.mark.parametrize("with_splits", [True, False])
def test_folder_that_datasets_saved(tmp_path, with_splits):
    import datasets

    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})

    def dataset(values):
        data = {"image": [{"bytes": png(v), "path": None} for v in values], "text": [f"t{v}" for v in values]}
        return datasets.Dataset.from_dict(data, features=features)

    if with_splits:
        datasets.DatasetDict({"train": dataset([1, 2]), "test": dataset([3])}).save_to_disk(tmp_path / "d")
    else:
        dataset([1, 2, 3]).select([2, 0, 1]).save_to_disk(tmp_path / "d")
    pages = load_pages(tmp_path / "d")
    assert [page.text for page in pages] == (["t1", "t2", "t3"] if with_splits else ["t3", "t1", "t2"])
    assert [f"t{page_image(page).getpixel((0, 0))[0]}" for page in pages] == [page.text for page in pages]
    if with_splits:
        assert [page.split for page in pages] == ["calibration", "calibration", "heldout"]
        assert pages[2].id.startswith("test/")


def test_dictionary_encoded_and_null_columns(tmp_path):
    table = pa.table(
        {
            "image": pa.array([png(0), png(1)], pa.large_binary()),
            "document": pa.array(["a", "b"]).dictionary_encode(),
            "text": pa.nulls(2),
            "kind": pa.array([None, "line"]),
        }
    )
    pq.write_table(table, tmp_path / "p.parquet")
    assert [(p.document, p.text, p.kind) for p in load_pages(tmp_path)] == [
        ("a", None, "page"),
        ("b", None, "line"),
    ]


def test_image_beside_the_table(tmp_path):
    (tmp_path / "here.png").write_bytes(png(7))
    images = [{"bytes": None, "path": "here.png"}, {"bytes": png(1), "path": None}]
    pq.write_table(pa.table({"image": images}), tmp_path / "p.parquet")
    assert page_image(load_pages(tmp_path / "p.parquet")[0]).getpixel((0, 0))[0] == 7


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ({"bytes": None, "path": "gone.png"}, "got a path to gone.png, which cannot be read"),
        ({"bytes": None, "path": None}, "got an empty cell"),
    ],
)
def test_cell_without_an_image(tmp_path, image, message):
    pq.write_table(pa.table({"image": [image, {"bytes": png(1), "path": None}]}), tmp_path / "p.parquet")
    with pytest.raises(ImageError, match=f"^p:0: expected image bytes in the table, {message}; embed them"):
        load_pages(tmp_path)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (
            {"picture": [b"x"]},
            PagesError,
            "expected a column image of encoded bytes .*, got columns picture; save",
        ),
        ({"image": ["x"]}, PagesError, "expected a column image of encoded bytes .*, got type string; save"),
        ({"image": [b"x"], "text": [1]}, PagesError, "expected column text of strings, got int64; cast"),
        ({"image": [b"x"], "kind": ["word"]}, PagesError, "p:0: expected kind to be one of"),
        ({"image": [b"x"], "split": ["dev"]}, SplitError, "p:0: expected split to be one of"),
        (
            {"image": [b"x", b"y"], "id": ["a", "a"]},
            PagesError,
            "page a: expected an id of its own .* got 1 ids",
        ),
        ({"image": [b"x", b"y"], "text": ["a", None]}, PagesError, "page p:1: expected text for every page"),
        ({"image": pa.array([], pa.binary())}, PagesError, "with at least one page, got 1 .parquet"),
    ],
)
def test_tables_that_are_refused(tmp_path, columns, error, message):
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    with pytest.raises(error, match=message):
        load_pages(tmp_path)


def test_damaged_parquet(tmp_path):
    (tmp_path / "p.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(
        PagesError, match=r"p.parquet: expected a readable table as datasets or pyarrow writes it"
    ):
        load_pages(tmp_path)


def test_damaged_saved_dataset(tmp_path):
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    with pytest.raises(PagesError, match=r"gone.arrow: expected a readable table"):
        load_pages(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(PagesError, match=r"state.json: expected a readable table"):
        load_pages(tmp_path)


def test_tables_and_images_in_one_folder(tmp_path):
    pq.write_table(pa.table(rows()), tmp_path / "p.parquet")
    (tmp_path / "a.png").write_bytes(png(0))
    with pytest.raises(
        PagesError, match="expected either parquet .* got 1 parquet files and 1 images or PDFs; keep"
    ):
        load_pages(tmp_path)
