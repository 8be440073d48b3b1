"""The shipped model after the quickstart: text that this package's runtime and vLLM read on real crops.

The checkpoint of the run is the compressed-tensors one as it is; ModelOpt's is made from it by ``export-as``.
Both caches are bf16 here: vLLM's CPU build has no FP8 cache.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from safetensors.torch import load_file

from ocrquant.adapters import PageInput, load_model
from ocrquant.engine import PageTask, RuntimeSettings, SamplingParams, Transcriber, load_runtime
from ocrquant.export import convert_checkpoint
from ocrquant.pages import ImageRef
from tests.consumers.making import ROOT, add_vision_tokens

RUN = ROOT / "runs" / "quickstart"
CROPS = ("euler-line-1", "bohr-en-line-2", "bosisio-mathcmd-line-1")
NUM_TOKENS = 120


@dataclass(frozen=True)
class Shipped:
    """Texts by job and crop as this package's runtime reads them, and jobs for another reader."""

    texts: dict[str, dict[str, str]]
    jobs: list[dict[str, Any]]
    decode: Any


def make(folder: Path, run: Path = RUN) -> Shipped:
    """Both checkpoints of a run, the crops as requests, and our own answers to them."""
    folders = {"compressed-tensors": run / "checkpoint", "modelopt": folder / "converted"}
    convert_checkpoint(folders["compressed-tensors"], folders["modelopt"], file_format="modelopt")
    document = load_model("pico")
    requests = []
    for crop in CROPS:
        path = ROOT / "calibration_data" / "heldout" / f"{crop}.png"
        with Image.open(path) as image:
            document.encode([PageInput(image, "line")])
        before, after = document.encoder.prompt_ids["line"]
        ids = [*before, document.encoder.image_token_id, *after]
        requests.append({"name": crop, "ids": ids, "image": str(path)})
    texts, jobs = {}, []
    for kind, source in folders.items():
        out = folder / f"quickstart-{kind}"
        texts[out.name] = read_here(source)
        shutil.copytree(source, out)
        add_vision_tokens(out)
        jobs.append({"name": out.name, "folder": str(out), "prompts": requests, "num_tokens": NUM_TOKENS})
    return Shipped(texts, jobs, document.tokenizer.decode)


def read_here(folder: Path) -> dict[str, str]:
    """The crops as the runtime of this package reads them, greedy."""
    pages = [
        PageTask(crop, ImageRef(ROOT / "calibration_data" / "heldout" / f"{crop}.png", "image"), "line")
        for crop in CROPS
    ]
    with Transcriber(load_runtime(folder, RuntimeSettings(max_requests=2)), workers=0) as transcriber:
        found = list(transcriber.read(pages, SamplingParams(max_tokens=NUM_TOKENS)))
    return {result.page.id: str(result.text) for result in found}


def texts_of(shipped: Shipped, answers: Path) -> dict[str, str]:
    """The crops as another program read them."""
    read = load_file(answers)
    return {
        crop: str(shipped.decode(read[f"{crop}.answer"].tolist(), skip_special_tokens=True)) for crop in CROPS
    }
