"""What runs: of every linear what the checkpoint asks for and what it gets, of every op its implementation.

Knows tables. Runs a tiny page, since ops choose when they are called.
"""

from __future__ import annotations

from PIL import Image

from ocrquant.engine import Runtime, SamplingParams, page_prompt
from ocrquant.kernels.selection import choices
from ocrquant.models.layers.linear import records_table

__all__ = ["explain"]


def explain(runtime: Runtime) -> str:
    """Tables of linears and ops, and a line of memory; the engine must have no requests."""
    side = 4 * runtime.processor.encoder.images.factor
    page = runtime.processor.encode(Image.new("RGB", (side, side), "white"), "page")
    runtime.engine.submit(page_prompt(page), SamplingParams(max_tokens=3, ignore_eos=True))
    runtime.engine.run_until_done()
    ops = sorted(choices().items())
    width = max((len(name) for name, _ in ops), default=0)
    return "\n".join(
        [
            records_table(runtime.model.linears),
            *(f"left out: {name} ({reason})" for name, reason in sorted(runtime.model.ignored.items())),
            "",
            *(f"{name:<{width}}  {choice.implementation} ({choice.reason})" for name, choice in ops),
            "",
            runtime.speculation_line(),
            f"memory: {runtime.memory.line()}",
        ]
    )
