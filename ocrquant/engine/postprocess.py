"""From sampled tokens to an answer: in order, up to whatever ends it.

Takes any number of tokens a step, and drops those after the end. Knows text and counts, no pages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ocrquant.engine.request import FinishReason, Request, RequestOutput, RequestResult
from ocrquant.engine.vocabulary import Vocabulary
from ocrquant.metrics.loops import LOOP_CHECK_EVERY, is_loop

__all__ = ["Postprocessor"]


class Postprocessor:
    """Ends answers.

    Args:
        end_ids: Tokens that end an answer.
        vocabulary: Bytes of tokens; None gives no text.
    """

    def __init__(self, end_ids: Collection[int], vocabulary: Vocabulary | None) -> None:
        self.end_ids = frozenset(end_ids)
        self.vocabulary = vocabulary

    def accept(self, request: Request, tokens: Sequence[int], gaps: Sequence[float]) -> RequestOutput:
        """Adds the tokens of one step to an answer.

        Args:
            request: Sets its `finish_reason` if the answer ends.
            tokens: At least one, in order.
            gaps: Of each token.
        """
        known, begin, text = len(request.output_ids), 0, ""
        tokens = tokens[: request.limit - request.num_generated]
        end = len(tokens) if request.sampling.ignore_eos else self._place_of_end(tokens)
        while begin < end and request.finish_reason is None:
            part = slice(begin, min(end, begin + _num_unchecked(request)))
            text += self._append(request, tokens[part], gaps[part])
            begin = part.stop
        if end < len(tokens) and request.finish_reason is None:
            request.num_generated += 1
            request.finish_reason = FinishReason.END
        new_ids = tuple(request.output_ids[known:])
        if request.finish_reason is None:
            return RequestOutput(request.id, new_ids, text)
        return self.close(request, new_ids, text)

    def _place_of_end(self, tokens: Sequence[int]) -> int:
        """Of the first end token; behind the last token where there is none."""
        if self.end_ids.isdisjoint(tokens):
            return len(tokens)
        return next(place for place, token in enumerate(tokens) if token in self.end_ids)

    def _append(self, request: Request, tokens: Sequence[int], gaps: Sequence[float]) -> str:
        """Adds tokens none of which ends the answer by itself, and looks whether it ends; their text."""
        request.extend(tokens, gaps)
        request.num_generated += len(tokens)
        new = "" if self.vocabulary is None else request.stream.push(self.vocabulary.join(tokens))
        request.finish_reason = _reason(request)
        return new

    @staticmethod
    def close(request: Request, new_ids: tuple[int, ...] = (), new_text: str = "") -> RequestOutput:
        """The last output of a request whose `finish_reason` is set.

        Args:
            request: Its text ends here.
            new_ids: Tokens of this step.
            new_text: Their text so far.
        """
        assert request.finish_reason is not None, "only a request that is over is closed"
        new_text += request.stream.close()
        result = RequestResult(
            finish_reason=request.finish_reason,
            text=request.stream.text,
            ids=tuple(request.output_ids),
            gaps=tuple(request.gaps),
            num_generated=request.num_generated,
            num_prompt_tokens=len(request.prompt),
            num_cached=request.num_cached,
            num_preemptions=request.num_preemptions,
            drafts=request.drafts,
        )
        return RequestOutput(request.id, new_ids, new_text, result)


def _num_unchecked(request: Request) -> int:
    """How many tokens may come until it matters whether the answer ends: stop strings may end in any."""
    if request.sampling.stop:
        return 1
    if request.sampling.stop_at_loop:
        return LOOP_CHECK_EVERY - request.num_generated % LOOP_CHECK_EVERY
    return request.limit


def _reason(request: Request) -> FinishReason | None:
    """Why an answer ends after its newest token, which is not an end token."""
    if request.stream.stopped:
        return FinishReason.STOP
    if request.num_generated >= request.limit:
        own = request.num_generated >= request.sampling.max_tokens
        return FinishReason.LENGTH if own else FinishReason.POSITIONS
    looks = request.sampling.stop_at_loop and request.num_generated % LOOP_CHECK_EVERY == 0
    return FinishReason.LOOP if looks and is_loop(request.output_ids) else None
