"""The benchmarks by name, each with its module and one sentence; loads none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["BENCHMARKS", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One benchmark.

    Attributes:
        module: Has a class ``Settings`` and a function ``run(settings, repeats)`` that gives a `Report`.
        summary: What it measures.
        repeated: Whether it repeats something; the others do everything once.
        has_table: Whether the module has a function ``render(result)``; its text is printed in place of JSON
            where nobody asks for that.
    """

    module: str
    summary: str
    repeated: bool = True
    has_table: bool = False


ONCE = ("contest", "correctness", "drafts", "kernels", "kills", "memory", "roofline", "soak")
"""Benchmarks that repeat nothing."""
TABLES = ("gpu", "kernels", "roofline")
"""Benchmarks that print a table."""

BENCHMARKS: Mapping[str, Entry] = MappingProxyType(
    {
        name: Entry(f"ocrquant.bench.{name.replace('-', '_')}", summary, name not in ONCE, name in TABLES)
        for name, summary in {
            "serving": "pages through the engine and through transformers: tokens/s and time to first token",
            "layer": "linears of one decoder layer of Qwen3.5-9B shape in bf16, FP8 and NVFP4",
            "model": "decoding with a random model of Qwen3.5-0.8B shape, bf16 and quantized",
            "metadata": "host time of a step's metadata against building it for groups of layers",
            "state": "recurrent states in windows of drafts: snapshots, rows done again, ReplaySSM; drift",
            "correctness": "greedy text of the engine against transformers, of a batch against one by one",
            "drafts": "texts with drafters against without, and how many drafts are accepted",
            "soak": "thousands of requests with cancellations, a full queue and preemptions",
            "memory": "a random model of 9 GB scored block by block: peak memory against the forecast",
            "workers": "pages prepared by worker processes beside the engine, by number of workers",
            "cost-table": "times of every product of a model in every format, for a plan's budget of time",
            "roofline": "a step of Qwen3.5-9B and 4B shape on a GPU by its stated limits; measures nothing",
            "gpu": "everything that only a GPU can tell: kernels, tests, decoding one change at a time",
            "export": "a model of Qwen3.5-4B shape exported against a copy of its file: time and memory",
            "sensitivity": "scores of all groups and formats: screened and measured, against whole passes",
            "ranks": "scores by processes that share a run, against one and against runs side by side",
            "contest": "our plans against those of ModelOpt's AutoQuantize, on pages that neither saw",
            "kills": "a run killed at random moments and run again: the same plan, byte for byte",
            "kernels": "kernels in Triton compiled without a GPU: registers, spills and instructions",
            "vision": "the vision tower on a batch packed into one sequence and image by image",
        }.items()
    }
)
