import json
import subprocess
import sys

import pytest
from PIL import Image

from ocrquant.errors import (
    EncryptedPdfError,
    ImageError,
    PagesError,
    PageSizeError,
    RecipeError,
    SplitError,
)
from ocrquant.pages import load_pages, page_digest, page_image

PAGE = "BT /F 12 Tf 50 700 Td (Hello) Tj ET"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pages"


def add_image(folder, name, text=None, size=(12, 8), color=0):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, color).save(path)
    if text is not None:
        path.with_suffix(".txt").write_text(text, encoding="utf-8")
    return path


def add_metadata(folder, rows, name="metadata.jsonl"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def test_images_with_text_beside_them(folder):
    for n in range(4):
        add_image(folder, f"{n}.png", f"text {n}\nmore\n", color=n)
    pages = load_pages(folder)
    assert [(page.id, page.document, page.text) for page in pages] == [
        (f"{n}.png", f"{n}.png", f"text {n}\nmore") for n in range(4)
    ]
    assert {page.split for page in pages} == {"calibration", "heldout"}
    assert {(page.width, page.height, page.kind, page.truth_source) for page in pages} == {
        (12, 8, "page", "ground_truth")
    }
    assert page_image(pages[3]).getpixel((0, 0)) == (3, 3, 3)


def test_text_is_nfc_without_mark_and_with_plain_newlines(folder):
    add_image(folder, "a.png")
    add_image(folder, "b.png", "b")
    (folder / "a.txt").write_bytes("\ufeffe\u0301\r\nx\r\n".encode())
    assert load_pages(folder)[0].text == "\u00e9\nx"


def test_without_any_text_the_model_is_to_transcribe(folder):
    for n in range(2):
        add_image(folder, f"{n}.png")
    pages = load_pages(folder, default_kind="line")
    assert {(page.text, page.truth_source, page.kind) for page in pages} == {(None, "model", "line")}
    read = pages[0].with_transcription("read")
    assert (read.text, read.truth_source, read.id) == ("read", "model", pages[0].id)
    assert page_digest(read) == page_digest(pages[0])


def test_text_for_some_pages_only(folder):
    for n in range(3):
        add_image(folder, f"{n}.png", "x" if n != 1 else None)
    with pytest.raises(
        PagesError,
        match=r"page 1.png: expected text for every page or for none, got 1 of 3 pages without text; ",
    ):
        load_pages(folder)


def test_metadata(folder):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        add_image(folder, name)
    rows = [
        {
            "file_name": "a/1.png",
            "text": "one",
            "document": "A",
            "kind": "line",
            "split": "train",
            "lang": "de",
        },
        {"file_name": "a/2.png", "text": "two", "document": "A", "kind": "block", "split": "train"},
        {"file_name": "b/1.png", "text": "", "split": "test", "provenance": {"anything": [1]}},
    ]
    add_metadata(folder, rows)
    pages = load_pages(folder)
    assert [(p.id, p.document, p.kind, p.split, p.text, p.lang) for p in pages] == [
        ("a/1.png", "A", "line", "calibration", "one", "de"),
        ("a/2.png", "A", "block", "calibration", "two", ""),
        ("b/1.png", "b/1.png", "page", "heldout", "", ""),
    ]


def test_metadata_in_split_folders(folder):
    for split in ("train", "test"):
        add_image(folder, f"{split}/x.png")
        add_metadata(folder, [{"file_name": "x.png", "text": split}], f"{split}/metadata.jsonl")
    assert [(p.id, p.split, p.text) for p in load_pages(folder)] == [
        ("test/x.png", "heldout", "test"),
        ("train/x.png", "calibration", "train"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"file_name": "gone.png"}',
            "line 2: expected file_name of an image or PDF, got gone.png, which is missing",
        ),
        ('{"file_name": "a.txt"}', "got a.txt, which is neither"),
        ('{"file_name": "a.png"}', "line 2: expected every file once, got a.png again"),
        ('{"file_name": "../out.png"}', "expected a file below the folder of pages, got ../out.png"),
        ('{"file_name": "b.png", "txt": "x"}', "expected keys file_name, text, .*, got txt: Extra inputs"),
        ('{"text": "x"}', "got file_name: Field required"),
        ('{"file_name": "b.png"', "line 2: expected a JSON object"),
        ('["b.png"]', "expected keys"),
        (
            '{"file_name": "b.png", "kind": "word"}',
            "b.png: expected kind to be one of line, block, page, got word",
        ),
    ],
)
def test_malformed_metadata(folder, line, message):
    add_image(folder, "a.png", "a")
    add_image(folder, "b.png", "b")
    add_image(folder.parent, "out.png")
    (folder / "metadata.jsonl").write_text(f'{{"file_name": "a.png"}}\n{line}\n')
    with pytest.raises(PagesError, match=message) as error:
        load_pages(folder)
    assert "\n" not in str(error.value)


def test_metadata_has_to_name_every_image(folder):
    add_image(folder, "a.png")
    add_image(folder, "b.png")
    add_metadata(folder, [{"file_name": "a.png", "text": "x"}])
    with pytest.raises(
        PagesError, match=r"b.png: expected every image to be named in metadata.jsonl, got 1 "
    ):
        load_pages(folder)


def test_metadata_csv_is_not_silently_ignored(folder):
    add_image(folder, "a.png")
    (folder / "metadata.csv").write_text("file_name,text\na.png,x\n")
    with pytest.raises(PagesError, match=r"metadata.csv: expected metadata.jsonl"):
        load_pages(folder)


def test_unknown_split(folder):
    add_image(folder, "a.png")
    add_metadata(folder, [{"file_name": "a.png", "split": "training"}])
    with pytest.raises(
        SplitError, match=r"a.png: expected split to be one of calibration, .*, got training; "
    ):
        load_pages(folder)


def test_two_images_for_one_text(folder):
    add_image(folder, "a.png", "x")
    add_image(folder, "a.jpg")
    with pytest.raises(PagesError, match=r"a.txt: expected one image of that name, got 2; rename"):
        load_pages(folder)


def test_text_that_is_not_utf8(folder):
    add_image(folder, "a.png")
    (folder / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(PagesError, match=r"a.txt: expected UTF-8"):
        load_pages(folder)


def test_empty_folder(folder):
    folder.mkdir()
    with pytest.raises(
        PagesError, match=r"pages: expected images, PDFs or parquet .*, got an empty folder; put"
    ):
        load_pages(folder)
    (folder / "photo.heic").write_bytes(b"x")
    (folder / ".hidden.png").write_bytes(b"x")
    with pytest.raises(PagesError, match=r"got 1 \.heic; "):
        load_pages(folder)


def test_missing_folder_and_other_file(folder):
    with pytest.raises(
        PagesError,
        match="pages: expected a folder of pages or a parquet file, got nothing of that name; name a folder",
    ):
        load_pages(folder)
    folder.write_text("x")
    with pytest.raises(PagesError, match="got another kind of file"):
        load_pages(folder)


def test_unreadable_image_is_named(folder):
    add_image(folder, "a.png")
    (folder / "b.png").write_bytes(b"not an image")
    with pytest.raises(
        ImageError, match=r"^b.png: expected an image, got 12 bytes of another format; replace"
    ):
        load_pages(folder)


def test_pixels_that_are_damaged_behind_a_good_header(folder):
    for name in ("a.png", "b.png"):
        path = add_image(folder, name, size=(300, 300))
        path.write_bytes(path.read_bytes()[:60])
    page = load_pages(folder)[0]
    with pytest.raises(ImageError, match=r"^a.png: expected a readable image"):
        page_image(page)


def test_listing_decodes_no_pixel(folder, monkeypatch):
    for n in range(3):
        add_image(folder, f"{n}.png", "x")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("pixels were decoded"))
    assert len(load_pages(folder)) == 3


def test_page_too_large(folder, write_pdf):
    add_image(folder, "a.png", size=(100, 50))
    add_image(folder, "b.png")
    assert len(load_pages(folder, max_pixels=5000)) == 2
    with pytest.raises(
        PageSizeError,
        match=r"^page a.png: expected at most 4,999 pixels, got 100 x 50 = 5,000; scale the image",
    ):
        load_pages(folder, max_pixels=4999)
    write_pdf("pages/c.pdf", [PAGE], size=(7200, 7200))
    with pytest.raises(PageSizeError, match=r"page c.pdf: .* got 15001 x 15001 = 225,030,001; lower the dpi"):
        load_pages(folder)


def test_pdf_pages_with_texts_separated_by_form_feeds(folder, write_pdf):
    write_pdf("pages/two.pdf", [PAGE, PAGE], size=(300, 200))
    (folder / "two.txt").write_text("first\n\fsecond\n\f")
    write_pdf("pages/one.pdf", [PAGE], size=(100, 50.5), page_keys="/Rotate 90")
    (folder / "one.txt").write_text("only")
    pages = load_pages(folder, dpi=100)
    assert [(p.id, p.document, p.text) for p in pages] == [
        ("one.pdf", "one.pdf", "only"),
        ("two.pdf#1", "two.pdf", "first"),
        ("two.pdf#2", "two.pdf", "second"),
    ]
    for page in pages:
        image = page_image(page)
        assert (image.mode, image.size) == ("RGB", (page.width, page.height))
    assert (pages[0].width, pages[0].height) == (71, 139)
    assert (pages[1].width, pages[1].height) == (417, 278)
    assert min(page_image(pages[1]).convert("L").tobytes()) == 255, "the text lies above a 200 point page"
    assert page_digest(pages[1]) != page_digest(pages[2])
    assert page_digest(pages[1]) != page_digest(load_pages(folder, dpi=101)[1])


def test_number_of_texts_has_to_be_that_of_the_pages(folder, write_pdf):
    write_pdf("pages/a.pdf", [PAGE, PAGE])
    (folder / "a.txt").write_text("one\ftwo\fthree")
    with pytest.raises(
        PagesError, match=r"a.pdf: expected 2 texts separated by form feeds, one a page, got 3; "
    ):
        load_pages(folder)


def test_frames_of_a_tiff_are_pages_of_one_document(folder):
    folder.mkdir()
    frames = [Image.new("L", (5, 5 + n), n) for n in range(2)]
    frames[0].save(folder / "scan.tiff", save_all=True, append_images=frames[1:])
    add_image(folder, "z.png")
    pages = load_pages(folder)
    assert [(p.id, p.document, p.height) for p in pages[:2]] == [
        ("scan.tiff#1", "scan.tiff", 5),
        ("scan.tiff#2", "scan.tiff", 6),
    ]
    assert page_image(pages[1]).getpixel((0, 0)) == (1, 1, 1)
    assert pages[0].split == pages[1].split


def test_encrypted_pdf(folder, write_pdf):
    write_pdf("pages/secret.pdf", [PAGE], password="open sesame")
    with pytest.raises(
        EncryptedPdfError, match=r"secret.pdf: expected a PDF without a password, got an encr.*qpdf"
    ):
        load_pages(folder)


def test_owner_password_alone_does_not_keep_anyone_out(folder, write_pdf):
    write_pdf("pages/a.pdf", [PAGE], password="")
    write_pdf("pages/b.pdf", [PAGE])
    assert page_image(load_pages(folder)[0]).size == (1240, 1755)


def test_damaged_pdf(folder):
    folder.mkdir()
    (folder / "a.pdf").write_bytes(b"%PDF-1.4\nnothing")
    with pytest.raises(
        ImageError, match=r"a.pdf: expected a readable PDF, got .*; replace the file or remove it"
    ):
        load_pages(folder)


def test_one_document_cannot_be_split(folder, write_pdf):
    path = write_pdf("pages/a.pdf", [PAGE, PAGE])
    with pytest.raises(
        SplitError, match=r"at least two documents, .* got 2 pages of one document \(a.pdf\); add"
    ):
        load_pages(folder)
    with pytest.raises(
        PagesError, match=r"a.pdf: expected a folder of pages .*, got another kind of file; name"
    ):
        load_pages(path)


def test_hidden_files_and_folders_are_nobodys_pages(folder):
    for name in ("a.png", "b.png", ".c.png", ".checkpoints/a.png", "x/.trash/metadata.png"):
        add_image(folder, name)
    add_metadata(folder, [{"file_name": "gone.png"}], ".checkpoints/metadata.jsonl")
    assert [page.id for page in load_pages(folder)] == ["a.png", "b.png"]


def test_linked_images_and_roundabout_names(folder, tmp_path):
    target = add_image(tmp_path / "elsewhere", "real.png", color=9)
    add_image(folder, "sub/b.png")
    (folder / "a.png").symlink_to(target)
    add_metadata(
        folder, [{"file_name": "sub/../a.png", "text": "a"}, {"file_name": "./sub/b.png", "text": "b"}]
    )
    pages = load_pages(tmp_path / "elsewhere" / ".." / "pages")
    assert [(page.id, page.text) for page in pages] == [("a.png", "a"), ("sub/b.png", "b")]
    assert page_image(pages[0]).getpixel((0, 0)) == (9, 9, 9)


def test_kinds(folder):
    for n in range(4):
        add_image(folder, f"{n}.png")
    add_metadata(
        folder,
        [{"file_name": f"{n}.png", "kind": kind} for n, kind in enumerate(["line"] * 2 + ["block"] * 2)],
    )
    with pytest.raises(PagesError, match="expected pages of kind page, got only block, line; ask"):
        load_pages(folder, kinds=["page"])
    splits = {page.id: page.split for page in load_pages(folder)}
    for kind in ("line", "block"):
        try:
            pages = load_pages(folder, kinds=[kind])
        except SplitError:
            continue
        assert {page.kind for page in pages} == {kind}
        assert all(splits[page.id] == page.split for page in pages), "the draw does not depend on the kinds"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_calibration_pages": 0}, "pages: num_calibration_pages: expected at least 1, got 0"),
        ({"num_heldout_pages": -1}, "num_heldout_pages: expected at least 1, got -1"),
        ({"heldout_fraction": 1.0}, "heldout_fraction: expected a share between 0 and 1, got 1.0"),
        ({"heldout_fraction": float("nan")}, "heldout_fraction"),
        ({"kinds": ["lines"]}, "kinds: expected some of line, block, page, got lines"),
        ({"default_kind": "word"}, "got word"),
        ({"dpi": 0}, "dpi: expected at least 1, got 0"),
    ],
)
def test_arguments_out_of_range(folder, arguments, message):
    add_image(folder, "a.png")
    add_image(folder, "b.png")
    with pytest.raises(RecipeError, match=message):
        load_pages(folder, **arguments)


def test_digest_sees_image_and_text_but_not_the_place(folder, tmp_path):
    for name in ("a.png", "b.png"):
        add_image(folder, name, "x")
    first = [page_digest(page) for page in load_pages(folder)]
    folder.rename(tmp_path / "moved")
    folder = tmp_path / "moved"
    assert [page_digest(page) for page in load_pages(folder)] == first
    (folder / "a.txt").write_text("y")
    changed = [page_digest(page) for page in load_pages(folder)]
    assert (changed[0] != first[0], changed[1] == first[1]) == (True, True)
    add_image(folder, "b.png", color=1)
    assert page_digest(load_pages(folder)[1]) != first[1]


def test_import_loads_neither_torch_nor_datasets():
    code = "import sys, ocrquant.pages.load, ocrquant.pages.make; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "pyarrow" in modules
    assert not {"torch", "datasets", "transformers", "pandas", "matplotlib"} & set(modules)
