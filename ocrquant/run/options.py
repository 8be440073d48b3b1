"""What a person may ask of ``ocrquant run``, and which of it changes a text.

Knows options. Checks none of them: whoever uses one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocrquant.pages import PageKind

__all__ = ["RunOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything but the checkpoint and the pages.

    Attributes:
        out: Folder for the texts.
        kind: Of all pages; None asks ``metadata.jsonl``, and takes ``page`` where that says nothing.
        prompt: An instruction in place of the model's own.
        requests: Most pages that are read at once.
        max_tokens: Most tokens of an answer; None: what the longest sequence has room for.
        temperature: 0 takes the most likely token.
        top_p: Probability mass of the tokens that are drawn from.
        seed: Of the random numbers, the same for every page.
        stop: Strings that end an answer.
        stop_at_loop: End an answer that repeats one phrase over and over.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; None: as everywhere.
        dtype: Of activations.
        activations: ``quantized`` as the checkpoint asks, or ``plain``.
        state: How recurrent states are kept.
        max_length: Longest sequence in tokens, page and answer together; None: the runtime's default.
        prefix_cache_mib: Memory for kept beginnings of prompts, in MiB.
        workers: Processes that prepare pages; None: the default of this machine.
        dpi: Resolution at which PDF pages are rendered.
        force: Read again what is up to date.
        explain: Say what runs before it does.
        speculation: What guesses tokens: ``off``, ``ngram`` or ``drafter``; texts are the same.
        drafter: Folder of the drafter, or the name of a shipped one; exactly with ``drafter``.
        window: Rows of a page in a step with guesses; None: see `ocrquant.engine.RuntimeSettings`.
        stats: Say what guessing brought.
    """

    out: Path
    kind: PageKind | None = None
    prompt: str | None = None
    requests: int = 8
    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_at_loop: bool = True
    device: str | None = None
    dtype: str = "bf16"
    activations: str = "quantized"
    state: str = "native"
    max_length: int | None = None
    prefix_cache_mib: int = 0
    workers: int | None = None
    dpi: int = 150
    force: bool = False
    explain: bool = False
    speculation: str = "off"
    drafter: Path | None = None
    window: int | None = None
    stats: bool = False

    def text_settings(self) -> dict[str, Any]:
        """What a page's text depends on besides the page, its kind and the checkpoint.

        How many pages are read together, who prepares them, what is kept of them and what is guessed changes
        no text.
        """
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": list(self.stop),
            "stop_at_loop": self.stop_at_loop,
            "dtype": self.dtype,
            "activations": self.activations,
            "state": self.state,
            "max_length": self.max_length,
            "dpi": self.dpi,
        }
