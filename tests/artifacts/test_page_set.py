import pytest

from ocrquant.artifacts import PageRecord, PageSet


def record(**changes):
    values = {
        "id": "a-1",
        "document": "a",
        "kind": "line",
        "split": "calibration",
        "file": "a.png",
        "storage": "image",
        "index": 0,
        "dpi": None,
        "sha256": "0" * 64,
        "width": 10,
        "height": 20,
        "text": "x",
        "truth_source": "ground_truth",
    }
    return PageRecord(**values | changes)


def page_set(*pages):
    return PageSet(inputs={}, source="crops", pages=list(pages))


def test_round_trip_and_choice_of_a_split(tmp_path):
    held = record(
        id="b-1", document="b", split="heldout", text=None, truth_source="model", dpi=120, storage="pdf"
    )
    pages = page_set(record(), held, record(id="a-2", text="two\nlines"))
    pages.save(tmp_path)
    assert PageSet.load(tmp_path) == pages
    assert [page.id for page in pages.of_split("calibration")] == ["a-1", "a-2"]
    assert pages.of_split("heldout") == [held]


def test_truth_may_be_supplied_by_the_model_later():
    assert record(truth_source="model", text="transcribed").text == "transcribed"
    with pytest.raises(ValueError, match="ground truth needs a text"):
        record(text=None)


def test_document_on_both_sides_is_refused():
    with pytest.raises(ValueError, match="document 'a' lies in both splits"):
        page_set(record(), record(id="a-2", split="heldout"))


def test_repeated_id_is_refused():
    with pytest.raises(ValueError, match="page 'a-1' is listed twice"):
        page_set(record(), record())


@pytest.mark.parametrize(
    "changes", [{"kind": "word"}, {"split": "train"}, {"width": 0}, {"index": -1}, {"sha256": "x"}]
)
def test_malformed_page_is_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        record(**changes)
