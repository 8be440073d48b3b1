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
        known, text = len(request.output_ids), ""
        for token, gap in zip(tokens, gaps, strict=True):
            request.num_generated += 1
            if token in self.end_ids and not request.sampling.ignore_eos:
                request.finish_reason = FinishReason.END
                break
            request.append(token, gap)
            if self.vocabulary is not None:
                text += request.stream.push(self.vocabulary.piece(token))
            request.finish_reason = _reason(request)
            if request.finish_reason is not None:
                break
        new_ids = tuple(request.output_ids[known:])
        if request.finish_reason is None:
            return RequestOutput(request.id, new_ids, text)
        return self.close(request, new_ids, text)

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


def _reason(request: Request) -> FinishReason | None:
    """Why an answer ends after its newest token, which is not an end token."""
    if request.stream.stopped:
        return FinishReason.STOP
    if request.num_generated >= request.limit:
        own = request.num_generated >= request.sampling.max_tokens
        return FinishReason.LENGTH if own else FinishReason.POSITIONS
    looks = request.sampling.stop_at_loop and request.num_generated % LOOP_CHECK_EVERY == 0
    return FinishReason.LOOP if looks and is_loop(request.output_ids) else None
