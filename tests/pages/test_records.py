import io

import pyarrow as pa
import pyarrow.parquet as pq
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


def test_a_table_as_source(tmp_path):
    cells = []
    for n in range(2):
        buffer = io.BytesIO()
        Image.new("L", (3, 3), n).save(buffer, "PNG")
        cells.append(buffer.getvalue())
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.table({"image": cells, "document": ["a", "b"]}), path)
    pages = load_pages(path)
    records = [to_record(page, path) for page in pages]
    assert [(r.file, r.storage, r.index, r.text) for r in records] == [
        ("pages.parquet", "parquet", 0, None),
        ("pages.parquet", "parquet", 1, None),
    ]
    assert [from_record(record, path) for record in records] == pages
    assert page_image(from_record(records[1], path)).getpixel((0, 0)) == (1, 1, 1)
