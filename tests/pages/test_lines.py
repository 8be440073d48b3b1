import dataclasses

import pytest

from ocrquant.pages.glyphs import Box, Glyph
from ocrquant.pages.lines import continues_block, cut_lines, text_fault

EM = 10.0
WIDTH = 5.0
# Height above and depth below the baseline, in em, of a serif face.
HEIGHTS = dict.fromkeys("acemnorsuvwxz", 0.45) | dict.fromkeys("gpqy", 0.45) | dict.fromkeys("bdhklfti", 0.7)
DEPTHS = dict.fromkeys("gpqyj", 0.2)


def glyphs(text, *, x=0.0, baseline=100.0, em=EM, shapes=str):
    """Characters in a row, each drawn as the letter that ``shapes`` makes of it."""
    row = []
    for char in text:
        if char == "\n":
            baseline, x = baseline - 1.2 * em, 0.0
        drawn = shapes(char)
        bottom = baseline - DEPTHS.get(drawn, 0.0) * em
        box = Box(x + 0.5, bottom, x + WIDTH - 0.5, baseline + HEIGHTS.get(drawn, 0.7) * em)
        row.append(
            Glyph(
                index=len(row),
                char=char,
                box=box,
                left=x,
                right=x + WIDTH,
                baseline=baseline,
                em=em,
                font="font",
                text_object=1,
                is_mapped=True,
                is_upright=True,
                is_hidden=False,
                is_generated=char in " \n",
            )
        )
        x += WIDTH
    return row


def only_line(text, **keys):
    (line,) = cut_lines(glyphs(text, **keys))
    return line


def test_lines_end_at_line_ends_and_wide_gaps():
    assert [line.text for line in cut_lines(glyphs("one two\nthree"))] == ["one two", "three"]
    assert [line.text for line in cut_lines(glyphs("one") + glyphs("two", x=15 + 2.1 * EM))] == ["one", "two"]
    assert [line.text for line in cut_lines(glyphs("one") + glyphs("two", baseline=93))] == ["one", "two"]
    assert cut_lines(glyphs(" \n ")) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\ufb01n \ufb03 \ufb05", "afin ffi st"),
        ("x\u22121 non\u2010break\u2011ing soft\u00ad", "x-1 non-break-ing soft-"),
        ("e\u0301", "\u00e9"),
        ("a \u00a0 \u2003b", "a b"),
        (" a b ", "a b"),
        ("1\u20132\u20143 \u201cq\u201d \u2026", "1\u20132\u20143 \u201cq\u201d \u2026"),
    ],
)
def test_text_as_a_reader_would_write_it(text, expected):
    assert only_line(text).text == expected


def test_an_ordinary_line_has_no_fault():
    assert text_fault(only_line("happy bold walks"), 5.0) is None


def test_small_capitals_that_are_called_lower_case():
    small_capitals = only_line("happy bold walks", shapes=lambda char: "x")
    assert text_fault(small_capitals, 5.0) == "letters of another shape"
    capitals = only_line("HAPPY BOLD WALKS")
    assert text_fault(capitals, 5.0) is None


@pytest.mark.parametrize("text", ["\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627"])
def test_right_to_left(text):
    assert text_fault(only_line(text), 5.0) == "right-to-left text"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"is_hidden": True}, "invisible text"),
        ({"is_mapped": False}, "unmapped character"),
        ({"is_upright": False}, "rotated text"),
        ({"baseline": 101.0}, "raised or lowered text"),
        ({"left": 6.0}, "overstruck text"),
        ({"left": 2.0}, "characters out of order"),
        ({"left": 12.0}, "doubtful space"),
        ({"em": 4.9}, "small text"),
    ],
)
def test_one_bad_character_spoils_the_line(change, fault):
    row = glyphs("words")
    row[2] = dataclasses.replace(row[2], **change)
    if "left" in change:
        row[2] = dataclasses.replace(row[2], right=row[3].left)
    (line,) = cut_lines(row)
    assert text_fault(line, 5.0) == fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ab", "too short"),
        ("a b", "too short"),
        ("abc", None),
        ("Title . . . . . 7", "dot leaders"),
        ("Title.....7", "dot leaders"),
        ("and so on...", None),
    ],
)
def test_texts_that_say_too_little_or_too_much(text, fault):
    assert text_fault(only_line(text), 5.0) == fault


def test_box_is_that_of_an_ordinary_line_at_least():
    assert only_line("---", shapes=lambda char: "x").box == Box(0.5, 97.5, 14.5, 107.5)
    tall = dataclasses.replace(glyphs("x")[0], box=Box(0, 90, 5, 115))
    assert cut_lines([tall])[0].box == Box(0, 90, 5, 115)


@pytest.mark.parametrize(
    ("keys", "is_continued"),
    [
        ({"baseline": 88.0}, True),
        ({"baseline": 79.0}, False),
        ({"baseline": 94.0}, False),
        ({"baseline": 112.0}, False),
        ({"baseline": 88.0, "x": 15.0}, False),
        ({"baseline": 88.0, "x": 5.0}, True),
        ({"baseline": 88.0, "em": 11.0}, False),
    ],
)
def test_lines_of_a_block(keys, is_continued):
    assert continues_block(only_line("words"), only_line("words", **keys)) is is_continued
