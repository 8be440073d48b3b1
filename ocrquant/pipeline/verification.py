"""A checkpoint verified with everything that the package has: its own checks, servers' limits, and logits.

Knows which part answers which question. Judges nothing but how far logits may be off.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from ocrquant.adapters import model_folder
from ocrquant.artifacts import Assignment
from ocrquant.engine import Runtime, RuntimeSettings, SamplingParams, load_runtime, page_prompt
from ocrquant.engine.scoring import ForcedAnswer, Scorer
from ocrquant.errors import EngineError, ModelError, PagesError, RecipeError, WeightValueError
from ocrquant.export import Target, check_target
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.verify import Findings, verify_checkpoint

__all__ = ["MAX_KL", "verify"]

MAX_KL = 1.0
"""Nats a token from which an answer has little to do with that of the source: twice the surprise of a coin.

Plans in use measure below 0.05, uniform NVFP4 of tiny random models below 0.01; one layer with its nibbles
swapped measured 3.8, a global scale that was not inverted 6.9 (vLLM 0.32.0, 2026-11-29).
"""

_MAX_TOKENS = 32
_PROBE = "Invoice 2041  Total 318.60 EUR"


def verify(
    checkpoint: str,
    *,
    source: str | None = None,
    plan: Path | None = None,
    target: str | None = None,
    page: Path | None = None,
) -> Findings:
    """Checks a checkpoint, whoever wrote it.

    Args:
        checkpoint: Its folder.
        source: Folder or name of the model that it was made from; then every weight is read and compared, and
            logits on a page.
        plan: Run folder or assignment that it was made from.
        target: Server that is to read it, as in a recipe.
        page: Image for the logits; else a line of text that is drawn.

    Raises:
        ModelError: It is no checkpoint, or one in a format that is not known here, or the source is unusable.
        ArtifactError: The plan is missing, malformed, or not one of this model.
        RecipeError: There is no such server, or a page without a source to compare on it.
        PagesError: The image cannot be read.
    """
    server = None if target is None else Target.parse(target)
    if page is not None and source is None:
        raise RecipeError("--page", expected="--against beside it", given="none", fix="name the source too")
    folder = model_folder(checkpoint)
    original = None if source is None else model_folder(source)
    assignment = None if plan is None else Assignment.load(plan)
    limits = None if server is None else partial(check_target, server)
    findings = verify_checkpoint(folder, source=original, plan=assignment, limits=limits)
    if original is not None:
        _check_logits(folder, original, _image(page), findings)
    return findings


def _check_logits(folder: Path, source: Path, image: Image.Image, findings: Findings) -> None:
    """Divergence along the source's own answer to one page."""
    settings = RuntimeSettings(max_requests=1)
    try:
        runtimes = [load_runtime(place, settings) for place in (source, folder)]
    except WeightValueError as error:
        findings.add(
            "logits-not-finite",
            error.thing,
            expected=error.expected,
            given=error.given,
            fix="export it again",
        )
        return
    except (ModelError, EngineError) as error:
        findings.add(
            "logits-not-compared",
            folder.name,
            expected="a scheme and a model that the runtime of this package computes",
            given=error,
            fix="compare logits with the server that is to read it",
        )
        return
    kl = _divergence(runtimes, image)
    if not bool(torch.isfinite(kl).all()):
        findings.add(
            "logits-not-finite",
            folder.name,
            expected="finite logits",
            given="NaN or Inf",
            fix="export it again",
        )
        return
    mean = float(kl.double().mean())
    findings.facts["KL from the source on one page"] = f"{mean:.4g} nats a token, {len(kl)} tokens"
    if mean > MAX_KL:
        findings.add(
            "logits-far-off",
            folder.name,
            expected=f"at most {MAX_KL:g} nats a token from the source",
            given=f"{mean:.4g}",
            fix="export it again, and compare what other findings name",
        )


def _divergence(runtimes: list[Runtime], image: Image.Image) -> torch.Tensor:
    first = runtimes[0]
    prompt = page_prompt(first.processor.encode(image, "line"))
    first.engine.submit(prompt, SamplingParams(max_tokens=_MAX_TOKENS), "page")
    ids = np.array(first.engine.run_until_done()["page"].ids, np.int32)
    answers = [ForcedAnswer(prompt, ids)]
    pieces = [list(Scorer(runtime.engine, runtime.runner).score(answers)) for runtime in runtimes]
    return torch.cat([kl_from_logits(a.logits, b.logits) for a, b in zip(*pieces, strict=True)])


def _image(page: Path | None) -> Image.Image:
    if page is None:
        image = Image.new("RGB", (320, 32), "white")
        ImageDraw.Draw(image).text((8, 8), _PROBE, fill="black")
        return image
    try:
        with Image.open(page) as opened:
            return opened.convert("RGB")
    except OSError as error:
        raise PagesError(page, expected="an image", given=error, fix="name another file") from error
