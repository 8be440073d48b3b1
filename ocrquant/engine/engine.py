"""The loop of the engine: schedule, run, postprocess.

Owns the requests from submission to their last output. Runs on one thread; whoever serves others hands over
through queues of its own. Knows no tensor and no model: a `Runner` computes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.drafting import DraftSource, num_accepted
from ocrquant.engine.plan import Plan, Runner, Sampled
from ocrquant.engine.pools import Pools
from ocrquant.engine.postprocess import Postprocessor
from ocrquant.engine.prefix_cache import PrefixCache, prefix_keys
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.request import FinishReason, Request, RequestOutput, RequestResult, RequestState
from ocrquant.engine.sampling import SamplingParams
from ocrquant.engine.scheduler import Scheduler
from ocrquant.engine.statistics import DecodeStatistics, StepStatistics
from ocrquant.engine.step_times import StepTime
from ocrquant.engine.text import TextStream
from ocrquant.engine.vocabulary import Vocabulary
from ocrquant.engine.window_policy import WindowPolicy
from ocrquant.errors import EngineError, PageSizeError, RequestError

__all__ = ["Engine", "StepStatistics"]


class Engine:
    """Serves requests with a runner.

    Args:
        config: What there is room for; the runner's buffers are of the same one.
        runner: Computes steps. Should it raise, or a signal end a step, then the requests of that step are in
            no known state, and the engine takes no more: make a new one.
        end_ids: Tokens that end an answer.
        vocabulary: Bytes of tokens; None gives tokens without text.
        drafts: Guesses of what comes next; None for one token a step.
        windows: Decides how many rows a request has in a step with guesses; None: as many as there is room
            for.

    Attributes:
        last_step: Of the latest step with rows; None before the first.
        statistics: What guessing brought so far.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        end_ids: Collection[int],
        vocabulary: Vocabulary | None = None,
        drafts: DraftSource | None = None,
        windows: WindowPolicy | None = None,
    ) -> None:
        self.config = config
        self.pools = Pools(config)
        self.prefixes = (
            PrefixCache(config, self.pools, runner.page_bytes) if config.prefix_cache_bytes else None
        )
        self.scheduler = Scheduler(config, self.pools, self.prefixes, drafts, windows)
        self.last_step: StepStatistics | None = None
        self.statistics = DecodeStatistics()
        self._runner = runner
        self._postprocessor = Postprocessor(end_ids, vocabulary)
        self._live: dict[str, Request] = {}
        self._outputs: list[RequestOutput] = []
        self._num_submitted = 0
        self._failure: BaseException | None = None
        self._accepted: list[int] = []

    @property
    def has_work(self) -> bool:
        """Whether another step can give something."""
        return bool(self._live or self._outputs)

    @property
    def has_failed(self) -> bool:
        """Whether a step raised or was interrupted, so that no other may follow."""
        return self._failure is not None

    def submit(self, prompt: Prompt, sampling: SamplingParams, request_id: str | None = None) -> str:
        """Lets a request wait for its turn.

        Args:
            prompt: What is asked.
            sampling: How tokens are chosen, and when to stop.
            request_id: A name that no live request has; None makes one.

        Returns:
            The name.

        Raises:
            QueueFullError: Too many wait already.
            PageSizeError: The prompt leaves no room for an answer in the longest sequence.
            RequestError: The request would not fit even alone, or does not suit the engine.
            EngineError: A step has failed.
        """
        self._refuse_after_failure()
        name = self._free_name() if request_id is None else request_id
        limit = self._check(name, prompt, sampling)
        vocabulary = self._postprocessor.vocabulary
        stream = TextStream(sampling.stop, strip_space=vocabulary is not None and vocabulary.strip_space)
        keys = prefix_keys(prompt, self.config)
        request = Request(name, self._num_submitted, prompt, sampling, limit, keys, stream)
        self.scheduler.submit(request)
        self._live[name] = request
        self._num_submitted += 1
        return name

    def cancel(self, request_id: str) -> bool:
        """Ends a request; its last output comes with the next step.

        Returns:
            False if there is none of that name, or it is over.
        """
        request = self._live.pop(request_id, None)
        if request is None:
            return False
        self.scheduler.cancel(request)
        self._runner.forget(request)
        request.finish_reason = FinishReason.CANCELLED
        self._outputs.append(self._postprocessor.close(request))
        return True

    def step(self) -> list[RequestOutput]:
        """Computes one step; gives what it brought to each request that sampled a token or is over.

        Raises:
            EngineError: An earlier step has failed.
        """
        self._refuse_after_failure()
        try:
            return self._step()
        except BaseException as error:
            # States may have moved on and counts not: another step would give wrong text.
            self._failure = error
            raise

    def _step(self) -> list[RequestOutput]:
        outputs, self._outputs = self._outputs, []
        began = time.perf_counter_ns()
        preemptions, hits = self.scheduler.num_preemptions, self._num_hits()
        plan = self.scheduler.schedule()
        if plan is None:
            return outputs
        scheduled = time.perf_counter_ns()
        sampled = self._run(plan)
        ran = time.perf_counter_ns()
        outputs += self._postprocess(plan, sampled)
        self.last_step = StepStatistics(
            shape=plan.shape,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.queue),
            num_preemptions=self.scheduler.num_preemptions - preemptions,
            num_prefix_hits=self._num_hits() - hits,
            free_pages=self.pools.num_free_pages,
            schedule_us=(scheduled - began) / 1000 - self.scheduler.draft_us,
            draft_us=self.scheduler.draft_us,
            run_us=(ran - scheduled) / 1000,
            postprocess_us=(time.perf_counter_ns() - ran) / 1000,
        )
        self._learn(plan, self.last_step)
        return outputs

    def _learn(self, plan: Plan, step: StepStatistics) -> None:
        """Times and acceptance of a step whose requests all went on in one way."""
        shape = plan.shape
        if self.scheduler.drafts is None or shape.prefill or (shape.drafted and shape.decode):
            return
        host_us = step.schedule_us + step.postprocess_us
        requests, window = (shape.drafted, shape.window) if shape.drafted else (shape.decode, 1)
        time = StepTime(requests, window, step.draft_us, step.run_us, host_us)
        accepted = self._accepted if shape.drafted else []
        self.scheduler.windows.note(time, accepted)
        self.statistics.note(time, requests + sum(accepted))

    def run_until_done(self) -> dict[str, RequestResult]:
        """Steps until nothing is left; the answers by name."""
        results = {}
        while self.has_work:
            for output in self.step():
                if output.result is not None:
                    results[output.id] = output.result
        return results

    def check_integrity(self) -> None:
        """Compares everything that is held with who holds it.

        Raises:
            AssertionError: Something is lost, held twice, or in a state that its place does not allow.
        """
        self.scheduler.check_integrity()
        running = {r.id for r in self.scheduler.running}
        waiting = [r for r in self._live.values() if r.id not in running]
        assert running <= self._live.keys(), "a request runs that is over"
        assert len(waiting) == len(self.scheduler.queue), "the queue has other requests than those that wait"
        for request in waiting:
            assert request.state in (RequestState.WAITING, RequestState.PREEMPTED), f"{request.id} is nowhere"
            assert request.holding is None, f"request {request.id} waits with pages"
            assert request.num_computed == 0, f"request {request.id} waits and counts as computed"

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise EngineError(
                "engine",
                expected="no step that failed",
                given=f"{type(self._failure).__name__} in an earlier one",
                fix="make a new engine and submit its requests again",
            ) from self._failure

    def _free_name(self) -> str:
        """The number of a submission; with a mark where a caller has taken it as a name."""
        name = str(self._num_submitted)
        while name in self._live:
            name += "+"
        return name

    def _check(self, name: str, prompt: Prompt, sampling: SamplingParams) -> int:
        """Most tokens of the answer, if the request can be served at all."""
        config = self.config
        if not isinstance(name, str):
            raise RequestError("request_id", expected="a string", given=repr(name))
        if name in self._live:
            raise RequestError(f"request {name}", expected="a name that no live request has", given=name)
        if len(prompt.positions) != config.position_axes:
            expected = f"{config.position_axes} axes of positions"
            raise RequestError(f"request {name}", expected=expected, given=len(prompt.positions))
        if sampling.stop and self._postprocessor.vocabulary is None:
            fix = "give the engine a vocabulary"
            raise RequestError(f"request {name}", expected="no stop strings without text", fix=fix)
        self._runner.check(prompt)
        limit = min(sampling.max_tokens, config.max_positions - len(prompt))
        if limit < 1:
            raise PageSizeError(
                f"request {name}",
                expected=f"a prompt of at most {config.max_positions - 1} tokens",
                given=f"{len(prompt)} tokens",
                fix="lower the resolution of the page, or cut it",
            )
        # The last token of an answer is never computed.
        needed = config.pages_for(len(prompt) + limit - 1)
        if needed > self.pools.num_pages:
            raise RequestError(
                f"request {name}",
                expected=f"at most {self.pools.num_pages * config.page_size} tokens, all that the pages hold",
                given=f"a prompt of {len(prompt)} and an answer of up to {limit}",
                fix="lower max_tokens, or raise engine.num_pages",
            )
        return limit

    def _num_hits(self) -> int:
        return 0 if self.prefixes is None else self.prefixes.num_hits

    def _run(self, plan: Plan) -> Sampled:
        """What has to be in place before the step, then the step."""
        for request in plan.forget:
            self._runner.forget(request)
        if plan.copies:
            self._runner.copy_pages(plan.copies)
        for restore in plan.restores:
            self._runner.restore(restore.slot, restore.snapshot)
        return self._runner.run(plan)

    def _postprocess(self, plan: Plan, sampled: Sampled) -> list[RequestOutput]:
        tokens, gaps = sampled.tokens.tolist(), sampled.gaps.tolist()
        first = plan.shape.drafted * plan.shape.window
        outputs = self._accept_windows(plan, tokens[:first], gaps[:first])
        for request in plan.decode:
            request.num_computed += 1
        for chunk in plan.prefill:
            request = chunk.request
            request.num_computed = chunk.end
            if self.prefixes is not None:
                self.prefixes.keep(request, chunk.start, chunk.end, self._runner.snapshot)
            if request.images_encoded and chunk.end >= request.prompt.images_end:
                self._runner.forget(request)
                request.images_encoded = False
        for request, token, gap in zip(plan.sampled, tokens[first:], gaps[first:], strict=True):
            outputs.append(self._accept(request, (token,), (gap,)))
        return outputs

    def _accept_windows(self, plan: Plan, tokens: list[int], gaps: list[float]) -> list[RequestOutput]:
        """Takes what the target chose behind right guesses, and lets the runner undo the other rows."""
        if not plan.drafted:
            return []
        starts = range(0, len(tokens), plan.shape.window)
        self._accepted = []
        for (request, drafts, num_guessed, by_slots), start in zip(plan.drafted, starts, strict=True):
            chosen = tokens[start : start + len(drafts)]
            right = num_accepted(drafts, chosen)
            # What comes behind the first wrong guess of the slots is not known.
            alone = min(1 + right, num_accepted(by_slots, chosen)) if by_slots else right
            self._accepted.append(right)
            request.num_computed += 1 + right
            request.drafts.add(num_guessed, 1 + right, alone)
            self.statistics.drafts.add(num_guessed, 1 + right, alone)
        self._runner.commit(plan, [1 + right for right in self._accepted])
        outputs = []
        for window, start, right in zip(plan.drafted, starts, self._accepted, strict=True):
            rows = slice(start, start + 1 + right)
            outputs.append(self._accept(window.request, tokens[rows], gaps[rows]))
        return outputs

    def _accept(self, request: Request, tokens: Sequence[int], gaps: Sequence[float]) -> RequestOutput:
        output = self._postprocessor.accept(request, tokens, gaps)
        if output.result is not None:
            self.scheduler.finish(request)
            del self._live[request.id]
        return output
