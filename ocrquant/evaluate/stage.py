"""The stage `evaluate`: transcripts, then the report, then the gate.

Knows the order of these and what each is made from. Does not know where the stages before left off.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial as bind
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image

from ocrquant.artifacts import (
    CheckpointRecord,
    Drafts,
    PageSet,
    PageTranscripts,
    Report,
    Rounding,
    RunFolder,
    Transcripts,
    atomic_folder,
    sha256_data,
)
from ocrquant.errors import PagesError
from ocrquant.evaluate.arms import ArmPlan
from ocrquant.evaluate.drafts import DraftedModel, read_with_drafts
from ocrquant.evaluate.gate import enforce_gate
from ocrquant.evaluate.readers import NamedMakers
from ocrquant.evaluate.reading import Speed, read_pages
from ocrquant.evaluate.report import IMAGE_FOLDER, RunFacts, build_report, write_pages
from ocrquant.evaluate.runtime_arms import RuntimeArms
from ocrquant.evaluate.simulated import SimulatedArms
from ocrquant.evaluate.truth import Tokens, longest_sequence
from ocrquant.json_files import read_json
from ocrquant.models import registry
from ocrquant.pages import Page, page_image
from ocrquant.recipe.sections import EvaluateSection, GateSection

__all__ = ["EvaluatedModel", "encode_image", "evaluate_run"]

_LOSSLESS_PIXELS = 500_000
_MAX_WIDTH = 1600


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedModel:
    """The unquantized model, and how it is run.

    Attributes:
        name: As the recipe names it.
        source: Its folder.
        device: Where the arms run.
        prompts: Instructions of the recipe for some kinds of page.
        allow_remote_code: Run Python files of the folder.
        allow_generic: Accept an unknown architecture.
        drafter: Folder of the drafter that `evaluate.drafter` names; None without one.
    """

    name: str
    source: Path
    device: torch.device
    prompts: Mapping[str, str]
    allow_remote_code: bool = False
    allow_generic: bool = False
    drafter: Path | None = None


def evaluate_run(
    run: RunFolder,
    pages: Sequence[Page],
    section: EvaluateSection,
    inputs: Mapping[str, str],
    *,
    gate: GateSection | None,
    model: EvaluatedModel,
    recipe_sha256: str,
    seed: int,
) -> Report:
    """Judges the exported plan beside bf16 and uniform plans and writes the report in its three forms.

    What is finished and made from the same inputs is not done again: with another gate or number of
    resamples no model runs, and a report that is up to date is only held against its gate.

    Args:
        run: The run folder, with all artefacts up to the checkpoint.
        pages: The held-out pages.
        section: `evaluate` of the recipe.
        inputs: SHA-256 of everything that the stage is made from, by name; also of the sections of the
            recipe.
        gate: `gate` of the recipe, if it has one.
        model: The unquantized model.
        recipe_sha256: Digest of the resolved recipe.
        seed: Seed of the bootstrap.

    Raises:
        GateError: A threshold is exceeded; the report is written.
        PagesError: There is no held-out page.
        ArtifactError: An artefact is missing, malformed, or not the one that another was made from.
        ImageError: An image cannot be read.
        ModelError: Neither the runtime nor `transformers` runs the model.
        PageSizeError: A page with its truth exceeds the context of the model.
        OutputError: The folder is not writable or the disk is full.
    """
    if not run.is_current(Report, inputs):
        if not pages:
            raise PagesError("held-out pages", expected="at least one", given="none", fix="add pages")
        plan = ArmPlan.of(run, section)
        transcripts = _transcripts(run, model, pages, section, plan)
        report = build_report(
            run,
            transcripts,
            drafts=_drafts(run, model, pages, section, transcripts),
            arm_groups=plan.groups,
            save_images=bind(_save_images, run.path, {page.id: page for page in pages}),
            evaluate=section,
            gate=gate,
            facts=RunFacts(
                model=model.name,
                recipe_sha256=recipe_sha256,
                source_bytes=sum(file.stat().st_size for file in model.source.rglob("*") if file.is_file()),
                seed=seed,
                has_fp8_cache=plan.has_fp8_cache,
            ),
            inputs=inputs,
        )
        # The artefact goes last: where it is, the pages are.
        write_pages(run.path, report)
        run.save(report)
    report = run.load(Report)
    enforce_gate(report, run.path)
    return report


class Arms(Protocol):
    """What runs all arms of a model."""

    @property
    def tokens(self) -> Tokens:
        """Tokens of pages and answers."""

    def environment(self, batch_size: int, longest: int) -> str:
        """SHA-256 of what decides how numbers are rounded; such numbers alone are continued."""

    def makers(self, plan: ArmPlan, batch_size: int, longest: int) -> NamedMakers:
        """What makes each arm when its turn comes, for so many pages at once of so many tokens."""


def _arms(run: RunFolder, model: EvaluatedModel) -> Arms:
    """The package's runtime where it has the family, else the model's own modules with simulated plans."""
    rounding = run.load(Rounding)
    names = read_json(model.source / "config.json").get("architectures") or [""]
    if names[0] in registry.FAMILIES:
        return RuntimeArms(model.source, model.device, model.prompts, rounding, run.path)
    return SimulatedArms.load(
        model.source,
        model.device,
        model.prompts,
        rounding,
        run.path,
        allow_remote_code=model.allow_remote_code,
        allow_generic=model.allow_generic,
    )


def _transcripts(
    run: RunFolder,
    model: EvaluatedModel,
    pages: Sequence[Page],
    section: EvaluateSection,
    plan: ArmPlan,
) -> Transcripts:
    """Reads the pages, or what an earlier evaluation read."""
    settings = {
        "arms": plan.names,
        "groups": plan.groups,
        "max_new_tokens": section.max_new_tokens,
        "batch_size": section.batch_size,
        "pages": [page.id for page in pages],
    }
    before = {kind.kind(): run.digest(kind) for kind in (PageSet, Rounding, CheckpointRecord)}
    inputs = {**before, "settings": sha256_data(settings)}
    if run.is_current(Transcripts, inputs):
        return run.load(Transcripts)
    arms = _arms(run, model)
    longest = longest_sequence(arms.tokens, pages, section.max_new_tokens)
    batch_size = min(section.batch_size, len(pages))
    environment = arms.environment(batch_size, longest)
    partial = run.partial(Transcripts.STAGE, {**inputs, "environment": environment})
    found = read_pages(
        arms.tokens,
        pages,
        arms.makers(plan, batch_size, longest),
        partial,
        max_new_tokens=section.max_new_tokens,
        batch_size=section.batch_size,
        longest=longest,
        note=bind(_note_speed, run),
    )
    transcripts = Transcripts(
        inputs=inputs, max_new_tokens=section.max_new_tokens, runtimes=found.runtimes, pages=found.pages
    )
    run.save(transcripts)
    partial.discard()
    return transcripts


def _drafts(
    run: RunFolder,
    model: EvaluatedModel,
    pages: Sequence[Page],
    section: EvaluateSection,
    transcripts: Transcripts,
) -> Drafts | None:
    """The pages once more with the drafter that the recipe names."""
    if model.drafter is None:
        return None
    drafted = DraftedModel(
        source=model.source, drafter=model.drafter, device=model.device, prompts=model.prompts
    )
    return read_with_drafts(run, drafted, pages, section, transcripts)


def _note_speed(run: RunFolder, speed: Speed) -> None:
    run.record_timing(
        f"{Transcripts.STAGE}: {speed.arm}, {speed.step}",
        speed.seconds,
        num_pages=speed.num_pages,
        num_tokens=speed.num_tokens,
        tokens_per_s=round(speed.num_tokens / speed.seconds, 1),
    )


def _save_images(
    folder: Path, pages: Mapping[str, Page], wanted: Sequence[PageTranscripts]
) -> dict[str, str]:
    """Writes the images of some pages into the run folder; their files by the id of the page."""
    names = {}
    with atomic_folder(folder / IMAGE_FOLDER) as temporary:
        for number, page in enumerate(wanted, start=1):
            suffix, data = encode_image(page_image(pages[page.page]))
            (temporary / f"{number}{suffix}").write_bytes(data)
            names[page.page] = f"{IMAGE_FOLDER}/{number}{suffix}"
    return names


def encode_image(image: Image.Image) -> tuple[str, bytes]:
    """An image small enough to travel inside a page of HTML.

    Args:
        image: RGB, of any size; it is made at most 1600 pixels wide, and grey where it holds no colour.

    Returns:
        ``.png`` for a crop, ``.jpg`` for what has more than half a million pixels, and the encoded bytes.
    """
    if image.width > _MAX_WIDTH:
        image = image.resize((_MAX_WIDTH, max(1, round(image.height * _MAX_WIDTH / image.width))))
    red, green, blue = image.split()
    if red.tobytes() == green.tobytes() == blue.tobytes():
        image = red
    buffer = io.BytesIO()
    if image.width * image.height <= _LOSSLESS_PIXELS:
        image.save(buffer, "PNG", optimize=True)
        return ".png", buffer.getvalue()
    image.save(buffer, "JPEG", quality=85)
    return ".jpg", buffer.getvalue()
