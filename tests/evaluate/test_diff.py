import pytest

from ocrquant.evaluate.diff import Span, differences, shorten, visible


def test_replaced_missing_and_added():
    assert differences("abcd", "axcde") == [
        Span("same", "a"),
        Span("missing", "b"),
        Span("added", "x"),
        Span("same", "cd"),
        Span("added", "e"),
    ]
    assert differences("ab", "") == [Span("missing", "ab")]
    assert differences("", "") == []


@pytest.mark.parametrize(
    ("truth", "output"), [("one two", "0ne  twoo"), ("a\nb", "a b\n"), ("", "x"), ("ß", "ss")]
)
def test_spans_spell_both_texts(truth, output):
    from ocrquant.metrics.text import normalize

    spans = differences(truth, output)
    assert "".join(s.text for s in spans if s.kind != "added") == normalize(truth)
    assert "".join(s.text for s in spans if s.kind != "missing") == normalize(output)


def test_what_does_not_count_as_an_error_is_not_marked():
    assert differences("a b\nc", "a   b \r\nc\n") == [Span("same", "a b\nc")]


def test_shorten():
    spans = [Span("same", "abc"), Span("added", "de"), Span("same", "fgh")]
    assert shorten(spans, 4) == ([Span("same", "abc"), Span("added", "d")], 4)
    assert shorten(spans, 3) == ([Span("same", "abc")], 5)
    assert shorten(spans, 8) == (spans, 0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\nb"),
        ("\x00\x1b", "␀␛"),
        ("\x7f", "␡"),
        ("\x85", "[U+0085]"),
        ("\u202eabc", "[U+202E]abc"),
        ("\u2066x\u200b", "[U+2066]x[U+200B]"),
        ("\ud800", "[U+D800]"),
        ("क्\u200dष é 漢", "क्\u200dष é 漢"),
    ],
)
def test_characters_that_act_are_shown(text, shown):
    assert visible(text) == shown
