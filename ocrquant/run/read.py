"""Pages through the engine into text files; what is up to date is left alone.

Joins inputs, engine and output folder. Computes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ocrquant import __version__, env
from ocrquant.adapters import drafter_folder, model_folder, resolve_device
from ocrquant.artifacts import sha256_data, write_bytes
from ocrquant.engine import (
    DraftCounts,
    PageResult,
    PageTask,
    Runtime,
    RuntimeSettings,
    SamplingParams,
    Transcriber,
    load_runtime,
)
from ocrquant.progress import progress_bar
from ocrquant.run.explain import explain
from ocrquant.run.inputs import InputPage, list_inputs
from ocrquant.run.options import RunOptions
from ocrquant.run.output import OutputFolder, checkpoint_digest
from ocrquant.run.summary import RunSummary

__all__ = ["run_pages"]

SUMMARY = "summary.json"
MIB = 1 << 20
_NO_LIMIT = 1 << 30


def run_pages(
    checkpoint: str | Path,
    sources: Sequence[str],
    options: RunOptions,
    say: Callable[[str], None] = print,
) -> RunSummary:
    """Reads pages and writes one text file each, ``summary.json`` and an index.

    Args:
        checkpoint: Folder of a checkpoint, or the name of a shipped model.
        sources: See `ocrquant.run.inputs.list_inputs`.
        options: How.
        say: Takes what `options.explain` and `options.stats` ask for.

    Returns:
        Counts. Pages that failed are in it; the others are written.

    Raises:
        ModelError, EngineError, RequestError, DeviceError: The checkpoint or an option cannot be used.
        PagesError: A source is missing or empty, or two pages have one name.
        RunFolderError, OutputError: The output folder is in use or cannot be written.
    """
    folder = model_folder(checkpoint)
    sampling = _sampling(options)
    pages = list_inputs(sources, options.kind, options.dpi)
    device = str(resolve_device(options.device))
    common = {
        "ocrquant": __version__,
        "checkpoint": checkpoint_digest(folder),
        "device": device.partition(":")[0],
        "kernels": env.kernels(),
        **options.text_settings(),
    }
    summary = RunSummary(checkpoint=str(checkpoint), num_pages=len(pages), settings=_plain(options))
    with OutputFolder(options.out) as output:
        work = _Work(output, common, options)
        todo = [page for page in pages if options.force or not work.is_done(page)]
        summary.num_skipped = len(pages) - len(todo)
        if todo or options.explain:
            runtime = load_runtime(folder, _settings(options, device))
            summary.runtime = {"device": device, "memory": asdict(runtime.memory)}
            if options.explain:
                say(explain(runtime))
            work.read(runtime, todo, sampling, summary)
            if options.speculation != "off":
                kinds = {kind: counts.tokens_a_step for kind, counts in work.drafts.items()}
                summary.guesses = {**runtime.statistics.record(), "tokens_a_step_by_kind": kinds}
            if options.stats:
                lines = [runtime.speculation_line(), *runtime.statistics.lines(work.drafts)]
                say("\n".join(lines))
        write_bytes(options.out / SUMMARY, summary.to_json().encode())
    return summary


class _Work:
    """Reads what is not up to date.

    Args:
        output: Where texts go.
        common: What all texts depend on.
        options: How to read.

    Attributes:
        drafts: What came of guesses, by kind of page.
    """

    def __init__(self, output: OutputFolder, common: dict[str, Any], options: RunOptions) -> None:
        self._output, self._common, self._options = output, common, options
        self._records: dict[str, dict[str, Any]] = {}
        self._kinds: dict[str, str] = {}
        self.drafts: dict[str, DraftCounts] = {}

    def is_done(self, page: InputPage) -> bool:
        """Whether the text of a page is there and up to date."""
        return page.error is None and self._output.is_done(page.name, page.image.path, self._settings(page))

    def read(
        self, runtime: Runtime, pages: list[InputPage], sampling: SamplingParams, summary: RunSummary
    ) -> None:
        """Reads pages and writes their texts as they come."""
        began = time.perf_counter()
        with (
            Transcriber(runtime, self._options.workers) as transcriber,
            progress_bar("reading", summary.num_pages, "pages", done=summary.num_skipped) as advance,
        ):
            for page in pages:
                if page.error is not None:
                    self._write(PageResult(page=_task(page), error=page.error), summary)
                    advance(1)
            for result in transcriber.read(self._tasks(runtime, pages), sampling):
                self._write(result, summary)
                summary.seconds = time.perf_counter() - began
                advance(1, note=f"{summary.tokens_per_second:,.0f} tokens/s")

    def _tasks(self, runtime: Runtime, pages: list[InputPage]) -> Iterator[PageTask]:
        prompt = self._options.prompt
        instruction = None if prompt is None else runtime.processor.prompt(prompt)
        for page in pages:
            if page.error is None:
                source = self._output.input_record(page.image.path)
                self._records[page.name] = {**source, "settings": self._settings(page)}
                self._kinds[page.name] = page.kind
                yield PageTask(page.name, page.image, instruction or page.kind)

    def _write(self, result: PageResult, summary: RunSummary) -> None:
        name = result.page.id
        record = self._records.pop(name, {})
        summary.add(result)
        if result.error is not None:
            self._output.drop(name)
            return
        if result.answer is not None and result.answer.drafts.num_windows:
            self.drafts.setdefault(self._kinds[name], DraftCounts()).merge(result.answer.drafts)
        done = {"tokens": result.num_tokens, "finish": str(result.finish_reason)}
        self._output.write(name, result.text, {**record, **done})

    def _settings(self, page: InputPage) -> str:
        """Digest of all that a text depends on besides its image."""
        asked = {"prompt": self._options.prompt} if self._options.prompt else {"kind": page.kind}
        return sha256_data({**self._common, **asked, "part": page.image.index})


def _task(page: InputPage) -> PageTask:
    return PageTask(page.name, page.image, page.kind)


def _sampling(options: RunOptions) -> SamplingParams:
    """Settings of every request; an answer that states no limit ends with the longest sequence."""
    return SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        stop=options.stop,
        stop_at_loop=options.stop_at_loop,
        max_tokens=_NO_LIMIT if options.max_tokens is None else options.max_tokens,
    )


def _settings(options: RunOptions, device: str) -> RuntimeSettings:
    return RuntimeSettings(
        max_requests=options.requests,
        max_length=options.max_length,
        dtype=options.dtype,
        device=device,
        activations=cast(Any, options.activations),
        state=cast(Any, options.state),
        prefix_cache_bytes=options.prefix_cache_mib * MIB,
        speculation=cast(Any, options.speculation),
        drafter=None if options.drafter is None else drafter_folder(options.drafter),
        window=options.window,
    )


def _plain(options: RunOptions) -> dict[str, Any]:
    """Options as JSON can hold them."""
    drafter = None if options.drafter is None else str(options.drafter)
    return {**asdict(options), "out": str(options.out), "stop": list(options.stop), "drafter": drafter}
