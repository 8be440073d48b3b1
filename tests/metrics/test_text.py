"""Text scores against edits counted by hand."""

import time

import pytest

from ocrquant.metrics.text import (
    Loop,
    Ratio,
    cer,
    character_errors,
    digit_errors,
    exact_lines,
    normalize,
    repetition_loop,
    wer,
    word_errors,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("e\u0301tude", "\u00e9tude"),  # e + combining accent -> one code point
        ("a \t b\u00a0\u3000c", "a b c"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("  a  \n\n  b ", "a\n\nb"),
        ("\n \n a\n\t\n", "a"),
        ("", ""),
        (" \u00a0\n", ""),
        ("\ufb01n, A.B", "\ufb01n, A.B"),  # a ligature, case and punctuation are content
        ("a\u200bb", "a\u200bb"),  # a zero-width space is not white space
    ],
)
def test_normalize(text, normal):
    assert normalize(text) == normal
    assert normalize(normal) == normal


@pytest.mark.parametrize(
    ("truth", "output", "errors", "length"),
    [
        ("kitten", "sitting", 3, 6),  # k->s, e->i, +g
        ("abc", "abc", 0, 3),
        ("abc", "", 3, 3),
        ("", "abc", 3, 0),
        ("", "", 0, 0),
        ("a b", "a\u00a0 b", 0, 3),
        ("e\u0301", "\u00e9", 0, 1),
        ("ab\ncd", "abcd", 1, 5),  # a lost line break is an error
        ("caf\u00e9", "cafe", 1, 4),
        ("\U0001d400b", "b", 1, 2),  # one code point beyond the basic plane
    ],
)
def test_character_errors(truth, output, errors, length):
    assert character_errors(truth, output) == Ratio(errors, length)


def test_word_errors():
    # quick -> quack, "the" left out, "dog" added
    assert word_errors("the quick brown the fox", "the quack brown fox dog") == Ratio(3, 5)
    assert word_errors("a\nb", "a b") == Ratio(0, 2)  # line breaks separate words and are none themselves
    assert word_errors("ab cd", "abcd") == Ratio(2, 2)
    assert word_errors("", "") == Ratio(0, 0)


def test_corpus_rates_are_ratios_of_sums():
    pairs = [("aaaaaaaaaa", "aaaaaaaaaa"), ("bb", "cc")]
    assert cer(pairs) == 2 / 12  # the mean of the page rates would be 1/2
    assert wer(pairs) == 1 / 2
    assert cer([]) == 0.0
    assert cer([("", "xyz")]) == 3.0
    assert Ratio(1, 2) + Ratio(3, 4) == Ratio(4, 6)


@pytest.mark.parametrize(
    ("truth", "output", "exact", "lines"),
    [
        ("a\nb\nc", "a\nb\nc", 3, 3),
        ("a\nb\nc", "a\nX\nb\nc", 3, 3),  # an additional line costs nothing here
        ("a\nb\nc", "b\nc", 2, 3),
        ("a\nb\nc", "c\nb\na", 1, 3),  # order matters
        ("a\n\nb", "a\nb", 2, 2),  # blank lines do not count
        ("a", "a ", 1, 1),
        ("a b", "ab", 0, 1),
        ("", "a", 0, 0),
    ],
)
def test_exact_lines(truth, output, exact, lines):
    assert exact_lines(truth, output) == Ratio(exact, lines)


@pytest.mark.parametrize(
    ("truth", "output", "errors", "digits"),
    [
        ("sum 1234", "sum 1234", 0, 4),
        ("sum 1234", "sun 1234", 0, 4),  # letters are no concern here
        ("12", "13", 1, 2),
        ("1O", "10", 1, 1),  # a letter that became a digit
        ("10", "1O", 1, 2),  # a digit that became a letter
        ("1234", "134", 1, 4),
        ("134", "1234", 1, 3),
        ("1,234", "1.234", 0, 4),  # the separator is not a digit
        ("none", "none 7", 1, 0),
        ("\u0661\u0662", "\u0661\u0663", 1, 2),  # Arabic-Indic digits
        ("x\u00b2", "x", 0, 0),  # a superscript two is not a decimal digit
        ("", "", 0, 0),
    ],
)
def test_digit_errors(truth, output, errors, digits):
    assert digit_errors(truth, output) == Ratio(errors, digits)


def test_digit_errors_never_exceed_character_errors():
    truth, output = "Invoice 2024-11-30 no. 10045", "lnvoice 2O24-1l-3O no 1045 77"
    # I->l, 0->O, 1->l, 0->O, a lost '.', a lost 0, and ' ', '7', '7' added: of these six are about digits
    assert character_errors(truth, output).count == 9
    assert digit_errors(truth, output).count == 6


def test_loop_of_an_ngram():
    text = "The total is:" + "12.50 EUR " * 9
    assert repetition_loop(text) == Loop(start=13, period=10, repeats=9.0)
    # A last copy cut short is part of the loop, the shortest period is the one reported.
    cut = "ab" + "xyz" * 20 + "xy"
    assert repetition_loop(cut) == Loop(start=2, period=3, repeats=62 / 3)
    assert repetition_loop("q" + "-" * 60) == Loop(start=1, period=1, repeats=60.0)


def test_loop_of_token_ids():
    tokens = [5, 6, 7, *[1, 2, 3, 4] * 12]
    assert repetition_loop(tokens) == Loop(start=3, period=4, repeats=12.0)
    assert repetition_loop(tuple(tokens[:-1])) == Loop(start=3, period=4, repeats=47 / 4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "The quick brown fox jumps over the lazy dog. The quick brown cat does not.",
        "Contents ........................... 12",  # the repetition is not at the end
        "Name: ______________________________",  # shorter than 40
        "abc def " * 3,
        "x" * 39,
        "12.50 EUR " * 9 + "and that is all.",  # it found its way out
    ],
)
def test_no_loop(text):
    assert repetition_loop(text) is None


def test_loop_thresholds():
    text = "start " + "0123456789" * 4
    assert repetition_loop(text).repeats == 4
    assert repetition_loop(text, min_repeats=4.5) is None
    assert repetition_loop(text, min_length=41) is None
    assert repetition_loop(text, max_period=9) is None
    assert repetition_loop("ab" * 6, min_length=12) == Loop(start=0, period=2, repeats=6.0)


def test_loop_search_is_quick_on_a_long_loop():
    start = time.process_time()
    assert repetition_loop("ab" * 50_000 + "c" + "0123456789abcdef" * 6_000).period == 16
    assert time.process_time() - start < 5
