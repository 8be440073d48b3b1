import pytest
from PIL import Image

from ocrquant.artifacts import PageRecord, sha256_file
from ocrquant.pages import from_record, image_sha256, load_pages, page_image, to_record


@pytest.fixture
def source(tmp_path, write_pdf):
    write_pdf("pages/sub/a.pdf", ["BT /F 12 Tf 50 700 Td (Hello) Tj ET"] * 2)
    (tmp_path / "pages/sub/a.txt").write_text("one\ftwo")
    Image.new("L", (9, 5)).save(tmp_path / "pages/b.png")
    (tmp_path / "pages/b.txt").write_text("b")
    return tmp_path / "pages"


def test_pages_survive_the_stage_file(source):
    pages = load_pages(source, dpi=60)
    records = [to_record(page, source) for page in pages]
    assert [(r.file, r.storage, r.index, r.dpi) for r in records] == [
        ("b.png", "image", 0, None),
        ("sub/a.pdf", "pdf", 0, 60),
        ("sub/a.pdf", "pdf", 1, 60),
    ]
    read = [PageRecord.model_validate_json(record.model_dump_json()) for record in records]
    assert [from_record(record, source) for record in read] == pages
    assert page_image(from_record(read[2], source)).size == (pages[2].width, pages[2].height)


def test_digest_is_that_of_the_file(source):
    for page in load_pages(source):
        assert to_record(page, source).sha256 == image_sha256(page) == sha256_file(page.image.path)


def test_one_file_as_source(tmp_path):
    frames = [Image.new("L", (3, 3), n) for n in range(2)]
    path = tmp_path / "scan.tif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    record = PageRecord(
        id="scan.tif#2",
        document="scan.tif",
        kind="page",
        split="heldout",
        file="scan.tif",
        storage="image",
        index=1,
        dpi=None,
        sha256="0" * 64,
        width=3,
        height=3,
        text=None,
        truth_source="model",
    )
    page = from_record(record, path)
    assert page_image(page).getpixel((0, 0)) == (1, 1, 1)
    assert to_record(page, path) == record.model_copy(update={"sha256": sha256_file(path)})
