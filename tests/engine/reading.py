"""Pages of the shipped model for tests of the runtime."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from PIL import Image

from ocrquant.engine.loading import Runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.sampling import SamplingParams

CROPS = Path(__file__).parents[2] / "calibration_data"


@cache
def crops(kind: str, split: str = "heldout") -> list[dict[str, str]]:
    """Records of the crops of a kind."""
    lines = (CROPS / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [r for r in records if r["kind"] == kind and r["file_name"].startswith(split)]


def prompts(runtime: Runtime, kind: str, count: int) -> list[Prompt]:
    """The first crops of a kind as prompts."""
    found = []
    for record in crops(kind)[:count]:
        with Image.open(CROPS / record["file_name"]) as image:
            found.append(page_prompt(runtime.processor.encode(image.convert("RGB"), kind)))
    return found


def read(runtime: Runtime, asked: list[Prompt], **sampling: object) -> list[list[int]]:
    """Tokens of the answers, all prompts submitted at once."""
    params = SamplingParams(**{"max_tokens": 64, **sampling})
    names = [runtime.engine.submit(prompt, params) for prompt in asked]
    results = runtime.engine.run_until_done()
    return [list(results[name].ids) for name in names]
