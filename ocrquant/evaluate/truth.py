"""What a page says, as text to judge by and as tokens to show to a model; and how much room all of it needs.

Knows tokens and the context of a model. Runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ocrquant.errors import PageSizeError
from ocrquant.pages import Page

__all__ = ["Tokens", "Truth", "known_truth", "longest_sequence", "model_truth"]


class Tokens(Protocol):
    """A model's view of sizes and texts: ``models.processing.Processor``, or its like."""

    @property
    def encoder(self) -> Any:
        """Has ``max_positions``, the most tokens of a sequence."""

    def num_tokens(self, width: int, height: int, kind: str) -> int:
        """Length of a sequence up to its answer."""

    def answer_ids(self, text: str) -> list[int]:
        """Tokens of an answer with the end token."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What a page says.

    Attributes:
        judged: What outputs are compared with.
        forced: What is fed to the model: the same, or as much of it as there is room for.
        ids: Tokens that are fed to the model, the end token included; of a shorter text only where a
            transcription was cut off at the end of the room for it.
        length: Tokens of the whole sequence.
    """

    judged: str
    forced: str
    ids: tuple[int, ...]
    length: int


def known_truth(processor: Tokens, page: Page) -> Truth:
    """The ground truth of a page that has one.

    Raises:
        PageSizeError: The page with its truth exceeds the context of the model.
    """
    assert page.text is not None, f"page {page.id} has ground truth without text"
    prompt, ids = _prompt_tokens(processor, page), processor.answer_ids(page.text)
    length, limit = prompt + len(ids), processor.encoder.max_positions
    if length > limit:
        raise PageSizeError(
            _label(page),
            expected=f"at most {limit} tokens, the context of the model",
            given=f"{length} ({prompt} of the prompt with its image)",
            fix="split the page, or lower its resolution",
        )
    return Truth(page.text, page.text, tuple(ids), length)


def model_truth(processor: Tokens, page: Page, transcription: str, longest: int) -> Truth:
    """A transcription in place of a truth that the page does not have.

    Args:
        processor: Of the source model.
        page: The page.
        transcription: What the model read.
        longest: Room for a sequence in tokens.

    Raises:
        PageSizeError: The page exceeds the context of the model.
    """
    prompt = _prompt_tokens(processor, page)
    forced, ids = transcription, processor.answer_ids(transcription)
    # What was cut off at the end of the context does not fit any more once the end token is added.
    while forced and prompt + len(ids) > longest:
        forced = forced[:-1]
        ids = processor.answer_ids(forced)
    return Truth(transcription, forced, tuple(ids), prompt + len(ids))


def longest_sequence(processor: Tokens, pages: Sequence[Page], max_new_tokens: int) -> int:
    """Tokens of the longest sequence that an evaluation of these pages can need.

    Raises:
        PageSizeError: A page with its truth exceeds the context of the model.
    """
    limit, longest = int(processor.encoder.max_positions), 1
    for page in pages:
        prompt = _prompt_tokens(processor, page)
        if page.truth_source != "model":
            longest = max(longest, known_truth(processor, page).length, prompt + max_new_tokens)
        else:
            # A transcription can take more tokens than the model spent: broken characters become whole ones.
            longest = max(longest, prompt + 2 * max_new_tokens + 1)
    return min(longest, limit)


def _prompt_tokens(processor: Tokens, page: Page) -> int:
    try:
        return processor.num_tokens(page.width, page.height, page.kind)
    except PageSizeError as error:
        raise PageSizeError(
            _label(page), expected=error.expected, given=error.given, fix=error.fix
        ) from error


def _label(page: Page) -> str:
    return f"page {page.id} ({page.width} x {page.height} pixels)"
