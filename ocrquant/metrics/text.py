"""How far a transcription is from the truth: characters, words, lines, digits, and outputs stuck in a loop.

Every score is a count over a count, so that a corpus is the sum of its pages (``sum(errors) / sum(length)``),
never a mean of page rates, and a bootstrap can resample pages.

Both texts are first brought to one form (``normalize``): Unicode NFC; every line break is one line feed; a
run of other white space, no-break and full-width spaces included, is one space; no white space at either end
of a line; no blank lines at either end of the text. Case, punctuation, ligatures and blank lines inside the
text are kept: they are content.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from rapidfuzz.distance import LCSseq, Levenshtein

__all__ = [
    "Loop",
    "Ratio",
    "cer",
    "character_errors",
    "digit_errors",
    "exact_lines",
    "normalize",
    "repetition_loop",
    "wer",
    "word_errors",
]

_LINE_BREAK = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OTHER_SPACE = re.compile(r"[^\S\n]+")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A count over a count; adding two adds both, so a sum over pages is the score of the corpus."""

    count: int
    total: int

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(self.count + other.count, self.total + other.total)

    @property
    def rate(self) -> float:
        """``count / total``; where there is nothing to count against, ``count`` itself."""
        return self.count / max(self.total, 1)


@dataclass(frozen=True, slots=True)
class Loop:
    """A tail that repeats itself.

    Attributes:
        start: Index where the first copy begins.
        period: Elements in one copy.
        repeats: Copies, the last one maybe cut short.
    """

    start: int
    period: int
    repeats: float


def normalize(text: str) -> str:
    """The form in which texts are compared (see the top of this module)."""
    text = _OTHER_SPACE.sub(" ", _LINE_BREAK.sub("\n", unicodedata.normalize("NFC", text)))
    return "\n".join(line.strip(" ") for line in text.split("\n")).strip("\n")


def character_errors(truth: str, output: str) -> Ratio:
    """Levenshtein distance in code points over the length of the truth; insert, delete, replace cost 1."""
    truth, output = normalize(truth), normalize(output)
    return Ratio(Levenshtein.distance(truth, output), len(truth))


def word_errors(truth: str, output: str) -> Ratio:
    """Levenshtein distance in words, runs without white space, over the number of words of the truth."""
    truth_words, output_words = normalize(truth).split(), normalize(output).split()
    return Ratio(Levenshtein.distance(truth_words, output_words), len(truth_words))


def exact_lines(truth: str, output: str) -> Ratio:
    """Lines of the truth that the output holds letter for letter and in order, over the lines of the truth.

    The longest common subsequence of lines: one missing or additional line costs that line only. Blank lines
    do not count.
    """
    truth_lines, output_lines = _lines(truth), _lines(output)
    return Ratio(LCSseq.similarity(truth_lines, output_lines), len(truth_lines))


def digit_errors(truth: str, output: str) -> Ratio:
    """Edits that touch a digit over the digits of the truth.

    Of one optimal character alignment, every edit counts that removes a digit of the truth or puts one into
    the output: a digit replaced by anything, anything replaced by a digit, a digit left out, a digit added. A
    digit is a decimal digit of any script (Unicode Nd). Where several alignments are optimal, rapidfuzz's is
    taken, always the same.
    """
    truth, output = normalize(truth), normalize(output)
    errors = 0
    for edit in Levenshtein.editops(truth, output):
        removed = truth[edit.src_pos] if edit.tag != "insert" else ""
        added = output[edit.dest_pos] if edit.tag != "delete" else ""
        errors += removed.isdecimal() or added.isdecimal()
    return Ratio(errors, sum(character.isdecimal() for character in truth))


def cer(pairs: Iterable[tuple[str, str]]) -> float:
    """Character error rate of a corpus of (truth, output) pairs: all errors over all characters of truth."""
    return sum((character_errors(*pair) for pair in pairs), Ratio(0, 0)).rate


def wer(pairs: Iterable[tuple[str, str]]) -> float:
    """Word error rate of a corpus of (truth, output) pairs: all errors over all words of truth."""
    return sum((word_errors(*pair) for pair in pairs), Ratio(0, 0)).rate


def repetition_loop(
    sequence: Sequence[Hashable],
    *,
    max_period: int = 200,
    min_repeats: float = 4.0,
    min_length: int = 40,
) -> Loop | None:
    """Finds a tail that is one n-gram over and over, as a decoder that lost its place writes.

    Takes the shortest period that fits. The defaults leave alone a row of dots or dashes as printed in tables
    of contents or forms when it is shorter than 40; where a page truly ends in a longer one, compare with the
    loop of its truth.

    Args:
        sequence: Characters of an output, or its token ids.
        max_period: Longest n-gram looked for, in elements.
        min_repeats: Copies needed; a last copy cut short counts in part.
        min_length: Elements that the repeated tail must span.

    Returns:
        The loop, or None.
    """
    length = len(sequence)
    for period in range(1, min(max_period, length // 2) + 1):
        start = length - period
        while start > 0 and sequence[start - 1] == sequence[start - 1 + period]:
            start -= 1
        if length - start >= max(min_length, min_repeats * period):
            return Loop(start=start, period=period, repeats=(length - start) / period)
    return None


def _lines(text: str) -> list[str]:
    return [line for line in normalize(text).split("\n") if line]
