import pytest

from ocrquant.artifacts import PageScoreRow, PageScores, ScoredPage
from ocrquant.errors import ArtifactError, PatternError


def scores(**rows):
    pages = [ScoredPage(id=name, num_tokens=n) for name, n in (("a", 10), ("b", 40), ("c", 0))]
    found = [PageScoreRow(group="g", precision="fp8", score=kind, sums=sums) for kind, sums in rows.items()]
    return PageScores(inputs={}, pages=pages, rows=found)


def test_frame_ranks_pages_by_what_they_contribute():
    frame = scores(kl=[0.25, 0.75, 0.0]).to_frame("g", "fp8")
    assert list(frame.columns) == ["page", "num_tokens", "sum", "per_token", "share"]
    assert list(frame.page) == ["b", "a", "c"]
    assert list(frame.share) == [0.75, 0.25, 0.0]
    assert list(frame.per_token)[:2] == [0.75 / 40, 0.025]
    assert frame.per_token.isna().tolist() == [False, False, True]


def test_a_measured_score_comes_before_an_estimated_one():
    found = scores(gradient=[1.0, 2.0, 3.0], kl=[0.0, 0.0, 0.0])
    assert found.row("g", "fp8").score == "kl"
    assert scores(gradient=[1.0, 2.0, 3.0]).row("g", "fp8").score == "gradient"
    assert list(found.to_frame("g", "fp8").share) == [0.0, 0.0, 0.0]


def test_file_is_read_back(tmp_path):
    found = scores(kl=[0.1, 0.2, 0.3])
    found.save(tmp_path)
    assert PageScores.load(tmp_path) == found


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(PatternError, match="g in nvfp4"):
        scores(kl=[0.1, 0.2, 0.3]).row("g", "nvfp4")
    with pytest.raises(ArtifactError, match="`sensitivity` first"):
        PageScores.load(tmp_path)


def test_sums_of_other_pages_are_refused():
    with pytest.raises(ValueError, match="2 sums of 'g' for 3 pages"):
        scores(kl=[0.1, 0.2])
