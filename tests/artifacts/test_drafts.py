import pytest

from ocrquant.artifacts import Drafts, PageDrafts
from ocrquant.errors import ArtifactError


def page(index, *, tokens=11, windows=2, accepted=8, kind="line", other=None):
    # Guesses spread evenly: every window accepts as many, up to one.
    survived = [count for place in range(15) if (count := min(windows, accepted - windows * place)) > 0]
    return PageDrafts(
        page=f"doc{index}/crop",
        kind=kind,
        document=f"doc{index}",
        num_tokens=tokens,
        num_windows=windows,
        num_guessed=15 * windows,
        num_accepted=accepted,
        tried=[windows, *survived][:15] if windows else [],
        survived=survived,
        other_text=other,
    )


@pytest.mark.parametrize(
    ("tokens", "windows", "accepted", "emitted"),
    [
        (11, 2, 8, 10),  # the first token came with the prompt
        (11, 2, 20, 10),  # ten of the guesses agree beyond the end
        (11, 2, 3, 5),  # five tokens came without guesses
        (1, 0, 0, 0),
    ],
)
def test_what_a_page_emits_ends_with_its_answer(tokens, windows, accepted, emitted):
    assert page(0, tokens=tokens, windows=windows, accepted=accepted).num_emitted == emitted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_accepted": 31}, "more accepted than guessed"),
        ({"num_windows": 31}, "at least one guess"),
        ({"survived": [2, 2]}, "survived must sum to num_accepted"),
    ],
)
def test_counts_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PageDrafts(**page(0).model_dump() | changes)


def test_round_trip(tmp_path):
    made = Drafts(inputs={}, design="dflash", block_size=16, pages=[page(0), page(1, other="another")])
    made.save(tmp_path)
    assert Drafts.load(tmp_path) == made
    frame = made.to_frame()
    assert list(frame["num_windows"]) == [2, 2]
    assert list(frame["other_text"].isna()) == [True, False]


def test_a_folder_without_drafts_says_which_stage_makes_them(tmp_path):
    with pytest.raises(ArtifactError, match="run the stage `evaluate` first"):
        Drafts.load(tmp_path)
