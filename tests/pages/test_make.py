import json

import numpy as np
import pytest

from ocrquant.errors import EncryptedPdfError, ImageError, OutputError, PagesError, RecipeError
from ocrquant.pages import load_pages, page_image
from ocrquant.pages.make import make_pages

GOOD = ["The quick brown fox jumps over the lazy dog.", "Sphinx of black quartz, judge my vow: 1984!"]
# A plain line that every fault is planted in.
VICTIM = "Pack my box with five dozen jugs"


def good_lines():
    """Two lines far apart from each other and from the rest of the page."""
    return "".join(at(60, 700 - 60 * n, text) for n, text in enumerate(GOOD))


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]


def make(write_pdf, tmp_path, content, **keys):
    """Texts of the crops of a page, and the summary."""
    pdf = write_pdf("in.pdf", [good_lines() + "\n" + content], **keys)
    summary = make_pages([pdf], tmp_path / "out", dpis=[120])
    return {row["text"] for row in rows_of(tmp_path / "out")}, summary


def at(x, y, text=VICTIM, *, font="F", points=12, before=""):
    """Operators that show a line; ``before`` may hold more operators of the text object."""
    return f"BT /{font} {points} Tf {before} {x} {y} Td ({text}) Tj ET\n"


def box(x, y, width, height, colour="1 1 1"):
    return f"{colour} rg {x} {y} {width} {height} re f 0 g\n"


# Each is a page that differs from one where VICTIM is kept in the named fault alone.
FAULTS = {
    "invisible": (at(60, 400, before="3 Tr"), "line: invisible text"),
    "clipping only": (f"q {at(60, 400, before='7 Tr')} Q", "line: invisible text"),
    "transparent": (f"/Clear gs {at(60, 400)} /Opaque gs", "line: invisible text"),
    "white on white": (f"1 g {at(60, 400)} 0 g", "line: no ink under a character"),
    "too pale": (f"0.9 g {at(60, 400)} 0 g", "line: no ink under a character"),
    "covered in part": (at(60, 400) + box(100, 390, 20, 30), "line: no ink under a character"),
    "covered by other colour": (
        at(60, 400) + box(55, 390, 300, 30, "0 0.4 0"),
        "line: no ink under a character",
    ),
    "rotated": (f"BT /F 12 Tf 0 1 -1 0 300 300 Tm ({VICTIM}) Tj ET", "line: rotated text"),
    "mirrored": (f"BT /F 12 Tf -1 0 0 1 400 400 Tm ({VICTIM}) Tj ET", "line: rotated text"),
    "rotated by the page": (f"q 0 1 -1 0 500 100 cm {at(60, 400 - 200)} Q", "line: rotated text"),
    "unmapped": (at(60, 400, VICTIM + "\\004", font="D"), "line: unmapped character"),
    "raised": (f"BT /F 12 Tf 60 400 Td ({VICTIM}) Tj 4 Ts /F 8 Tf (2) Tj ET", "line: raised or lowered text"),
    "letterspaced": (at(60, 400, before="4 Tc"), "line: doubtful space"),
    "space without a gap": ("BT /F 12 Tf 60 400 Td [(Pack my ) 250 (box)] TJ ET", "line: doubtful space"),
    "another line across": (
        at(60, 400) + at(60, 404, "of liquor and more of it"),
        "line: other text in the crop",
    ),
    "small": (at(60, 400, points=5), "line: small text"),
    "struck through": (at(60, 400) + "\n0 0 0 rg 55 403 260 1.5 re f", "line: foreign ink"),
    "cut-off ink beside it": (at(60, 400) + "\n56 403 4.5 2 re f", "line: something cut off at the edge"),
    "over a picture": (
        box(50, 390, 300, 30, "0.7 0.7 0.7") + box(60, 390, 90, 30, "0.35 0.35 0.35") + at(60, 400),
        "line: foreign ink",
    ),
    "at the rim of the page": (at(-3, 400), "line: outside the page"),
    "dot leaders": (at(60, 400, VICTIM + " . . . . . . . . 12"), "line: dot leaders"),
    "crossed out by letters": (
        f"BT /F 12 Tf 60 400 Td [({VICTIM}) 1200 (x) 500] TJ ET",
        "line: characters out of order",
    ),
    "accent put on afterwards": (
        f"BT /F 12 Tf 60 400 Td [({VICTIM} e) 440 (\\264)] TJ ET",
        "line: overstruck text",
    ),
}
RESOURCES = "/ExtGState << /Clear << /ca 0 >> /Opaque << /ca 1 >> >>"


def test_a_clean_line_is_kept(write_pdf, tmp_path):
    texts, summary = make(write_pdf, tmp_path, at(60, 400))
    assert texts == {*GOOD, VICTIM}
    assert (summary.num_documents, summary.num_pages, summary.num_lines, summary.num_blocks) == (1, 1, 3, 0)
    assert summary.dropped == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_line_is_dropped_and_the_others_stay(write_pdf, tmp_path, fault):
    content, reason = FAULTS[fault]
    texts, summary = make(write_pdf, tmp_path, content, resources=RESOURCES)
    assert texts == set(GOOD)
    assert reason in summary.dropped


HARMLESS = {
    "slanted": (f"BT /F 12 Tf 1 0 0.3 1 60 400 Tm ({VICTIM}) Tj ET", VICTIM),
    "on a tinted box": (box(50, 390, 300, 30, "0.8 0.9 1") + at(60, 400), VICTIM),
    "white on black": (box(50, 390, 300, 30, "0 0 0") + "1 g " + at(60, 400) + " 0 g", VICTIM),
    "coloured": ("0.8 0 0 rg " + at(60, 400) + " 0 g", VICTIM),
    "in a form": ("/Form Do", VICTIM),
    "ligature, minus and quote": (
        at(60, 400, "the \\001rst is \\0025, isn\\003t it", font="D"),
        "the first is -5, isn\u2019t it",
    ),
    "typewriter": (at(60, 400, "i = f[1,2].l || 'x'", font="C"), "i = f[1,2].l || 'x'"),
    "scaled by the page": (f"q 0.012 0 0 0.012 60 400 cm {at(0, 0, points=1000)} Q", VICTIM),
    "kerned": ("BT /F 12 Tf 60 400 Td [(A) 70 (V) 70 (A T) 90 (o Y) 90 (o)] TJ ET", "AVA To Yo"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_looks_like_a_fault_and_is_none(write_pdf, tmp_path, case):
    content, expected = HARMLESS[case]
    form = at(60, 400)
    form = (
        f"<< /Type /XObject /Subtype /Form /BBox [0 0 595 842] /Resources << /Font << /F 3 0 R >> >> "
        f"/Length {len(form)} >>\nstream\n{form}\nendstream"
    )
    resources = "/XObject << /Form 6 0 R >>"
    texts, _ = make(write_pdf, tmp_path, content, resources=resources, extra_objects=[form])
    assert texts == {*GOOD, expected}


def test_two_columns_come_apart(write_pdf, tmp_path):
    texts, _ = make(write_pdf, tmp_path, at(60, 400, "left hand") + at(300, 400, "right hand"))
    assert texts == {*GOOD, "left hand", "right hand"}


def paragraph(texts, *, leading=15, points=12, x=60, top=400):
    return "\n".join(at(x, top - leading * n, text, points=points) for n, text in enumerate(texts))


PARAGRAPH = [f"line number {n} of a paragraph, all of one size" for n in range(5)]


def test_blocks_are_lines_that_follow_one_another(write_pdf, tmp_path):
    pdf = write_pdf("in.pdf", [paragraph(PARAGRAPH)])
    make_pages([pdf], tmp_path / "out", dpis=[120], max_crops_per_page=40)
    rows = rows_of(tmp_path / "out")
    blocks = [row["text"].split("\n") for row in rows if row["kind"] == "block"]
    assert blocks
    for block in blocks:
        start = PARAGRAPH.index(block[0])
        assert 2 <= len(block) <= 8
        assert block == PARAGRAPH[start : start + len(block)]
    shown = [line for row in rows for line in row["text"].split("\n")]
    assert sorted(shown) == sorted(PARAGRAPH), "no line is shown twice"


@pytest.mark.parametrize(
    "content",
    [
        paragraph(PARAGRAPH[:1]) + paragraph(PARAGRAPH[1:2], points=14, top=384),
        paragraph(PARAGRAPH[:2], leading=40),
        paragraph(PARAGRAPH[:1]) + paragraph(PARAGRAPH[1:2], x=300, top=385),
        paragraph(PARAGRAPH[:1])
        + at(60, 385, "a rotten line", before="3 Tr")
        + "0 Tr "
        + paragraph(PARAGRAPH[1:2], top=370),
    ],
    ids=["other size", "far away", "other column", "dropped line between"],
)
def test_what_is_no_block(write_pdf, tmp_path, content):
    texts, summary = make(write_pdf, tmp_path, content)
    assert texts == {*GOOD, *PARAGRAPH[:2]}
    assert summary.num_blocks == 0


def test_foreign_text_inside_a_block(write_pdf, tmp_path):
    lines = ["a short line", "a line that is much longer than that"]
    texts, summary = make(write_pdf, tmp_path, paragraph(lines, leading=20) + at(200, 400, "aside"))
    assert texts == {*GOOD, *lines, "aside"}
    assert summary.dropped == {"block: other text in the crop": 1}


def test_crop_shows_the_ink_of_its_line(write_pdf, tmp_path):
    pdf = write_pdf("in.pdf", [at(60, 400) + at(60, 300, "Another line", points=20)], size=(400, 500))
    make_pages([pdf, write_pdf("other.pdf", [at(60, 400, "xyz")])], tmp_path / "out", dpis=[144])
    pages = {page.text: page for page in load_pages(tmp_path / "out")}
    row = next(row for row in rows_of(tmp_path / "out") if row["text"] == VICTIM)
    left, top, right, bottom = row["provenance"]["box"]
    # Baseline 100 points below the top of the page at 2 pixels a point, 12 points to the em.
    assert top < 2 * 100 - 2 * 8 < 2 * 100 < bottom
    assert bottom - top < 1.5 * 2 * 12
    assert left in range(116, 122)
    image = page_image(pages[VICTIM])
    assert image.size == (right - left, bottom - top)
    columns = np.flatnonzero((np.asarray(image.convert("L")) < 128).any(axis=0))
    assert columns[0] <= 5
    assert columns[-1] >= image.width - 6


def test_crops_of_a_cropped_page(write_pdf, tmp_path):
    pdf = write_pdf("in.pdf", [at(60, 400)], page_keys="/CropBox [50 350 300 450]")
    make_pages([pdf], tmp_path / "out", dpis=[72 * 2])
    (row,) = rows_of(tmp_path / "out")
    left, top, _, bottom = row["provenance"]["box"]
    assert left in range(16, 22)
    assert top < 2 * 50 < bottom


def test_colour_is_kept_and_grey_saved_as_grey(write_pdf, tmp_path):
    from PIL import Image

    pdf = write_pdf("in.pdf", [at(60, 400) + "1 0 0 rg " + at(60, 300, "In red letters")])
    make_pages([pdf], tmp_path / "out")
    modes = {
        row["text"]: Image.open(tmp_path / "out" / row["file_name"]).mode for row in rows_of(tmp_path / "out")
    }
    assert modes == {VICTIM: "L", "In red letters": "RGB"}


def test_result_is_a_source_of_pages_with_provenance(write_pdf, tmp_path):
    pdfs = [
        write_pdf(f"{name}/in.pdf", [at(60, 400, f"text of {name} {n}") for n in range(3)]) for name in "ab"
    ]
    summary = make_pages(pdfs, tmp_path / "out", dpis=[96, 120, 150], seed=3)
    assert (summary.num_documents, summary.num_pages, summary.num_lines) == (2, 6, 6)
    rows = rows_of(tmp_path / "out")
    pages = load_pages(tmp_path / "out")
    assert len({page.document for page in pages}) == 2, "files of one name are told apart"
    assert {page.kind for page in pages} == {"line"}
    assert {(page.split, page.document) for page in pages} == {
        (split, document)
        for split, document in {page.document: (page.split, page.document) for page in pages}.values()
    }
    assert {row["provenance"]["page"] for row in rows} == {1, 2, 3}
    assert {row["provenance"]["file"] for row in rows} == {"in.pdf"}
    assert len({row["provenance"]["dpi"] for row in rows}) > 1
    stated = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (stated["num_lines"], stated["num_kept"]) == (6, 6)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_same_seed_same_bytes(write_pdf, tmp_path):
    pdfs = [
        write_pdf(f"{n}.pdf", [paragraph([f"{m} {text}" for text in PARAGRAPH]) for m in range(4)])
        for n in range(2)
    ]
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_pages(pdfs, tmp_path / name, seed=seed, max_crops=9, max_crops_per_page=3)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a").keys() != contents(tmp_path / "c").keys()


def test_documents_take_turns_and_pages_are_limited(write_pdf, tmp_path):
    pages = [paragraph([f"{n} {text}" for text in PARAGRAPH], leading=40) for n in range(4)]
    pdfs = [
        write_pdf("long.pdf", pages),
        write_pdf("short.pdf", [paragraph([text.upper() for text in PARAGRAPH], leading=40)]),
    ]
    seen = []
    summary = make_pages(
        pdfs,
        tmp_path / "out",
        max_crops=5,
        max_crops_per_page=2,
        on_page=lambda pdf, count: seen.append((pdf.name, count)),
    )
    assert seen == [("long.pdf", 2), ("short.pdf", 4), ("long.pdf", 5)]
    assert (summary.num_lines, summary.num_documents, summary.num_pages, summary.num_kept) == (5, 2, 3, 15)


def test_the_same_pdf_under_two_names(write_pdf, tmp_path):
    pdfs = [write_pdf(f"{n}.pdf", [at(60, 400)]) for n in range(2)]
    summary = make_pages(pdfs, tmp_path / "out")
    assert (summary.num_documents, summary.num_lines) == (1, 1)
    assert summary.dropped == {"document: the same PDF again": 1}


def test_folder_of_pdfs(write_pdf, tmp_path):
    write_pdf("in/deep/a.PDF", [at(60, 400)])
    write_pdf("in/b.pdf", [at(60, 400, "other text")])
    assert make_pages([tmp_path / "in"], tmp_path / "out").num_documents == 2


@pytest.mark.parametrize(
    ("keys", "arguments", "reason"),
    [
        ({"page_keys": "/Rotate 90"}, {}, "1 x page shown rotated"),
        ({}, {"max_pixels": 1000}, "1 x page too large"),
        ({}, {"dpis": [40]}, "1 x line: small text"),
    ],
)
def test_no_crop_at_all(write_pdf, tmp_path, keys, arguments, reason):
    pdf = write_pdf("in.pdf", [at(60, 400)], **keys)
    with pytest.raises(PagesError, match=f"in.pdf: expected at least one line whose .*, got {reason}; give"):
        make_pages([pdf], tmp_path / "out", **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["in.pdf"], "nothing half-written"


def test_scan_without_text(write_pdf, tmp_path):
    pdf = write_pdf("scan.pdf", ["0 g 50 50 200 20 re f"])
    with pytest.raises(PagesError, match="got no text at all"):
        make_pages([pdf], tmp_path / "out")


def test_bad_inputs(write_pdf, tmp_path):
    good = write_pdf("good.pdf", [at(60, 400)])
    secret = write_pdf("secret.pdf", [at(60, 400)], password="x")
    damaged = tmp_path / "damaged.pdf"
    damaged.write_bytes(good.read_bytes()[:20])
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("x")
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        (
            [good, secret],
            tmp_path / "out",
            {},
            EncryptedPdfError,
            "secret.pdf: expected a PDF without a password",
        ),
        ([good, damaged], tmp_path / "out", {}, ImageError, "damaged.pdf: expected a readable PDF"),
        ([tmp_path / "gone.pdf"], tmp_path / "out", {}, PagesError, "gone.pdf: expected a PDF, got nothing"),
        ([empty], tmp_path / "out", {}, PagesError, "expected at least one PDF, got none"),
        ([good], full, {}, OutputError, "full: expected a new or empty folder"),
        ([good], good, {}, OutputError, "expected a new or empty folder"),
        ([good], good / "out", {}, OutputError, "good.pdf/out: expected a file that can be written whole"),
        ([good], tmp_path / "out", {"dpis": []}, RecipeError, "pages make: dpis: expected at least 1"),
        ([good], tmp_path / "out", {"dpis": [96, 0]}, RecipeError, "dpis"),
        ([good], tmp_path / "out", {"max_crops": 0}, RecipeError, "max_crops: expected at least 1"),
        ([good], tmp_path / "out", {"max_crops_per_page": 0}, RecipeError, "max_crops_per_page"),
    ]
    for pdfs, out, arguments, error, message in cases:
        with pytest.raises(error, match=message):
            make_pages(pdfs, out, **arguments)
        assert not (tmp_path / "out").exists()
    assert make_pages([good], empty).num_lines == 1
