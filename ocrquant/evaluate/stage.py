"""The stage `evaluate`: transcripts, then the report, then the gate.

Knows the order of these and what each is made from. Does not know where the stages before left off.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial as bind
from pathlib import Path

import torch
from PIL import Image

from ocrquant.artifacts import (
    ArmName,
    CheckpointRecord,
    PageSet,
    PageTranscripts,
    Report,
    Rounding,
    RunFolder,
    Sensitivity,
    Transcripts,
    atomic_folder,
    sha256_data,
)
from ocrquant.assign.problem import uniform_plan
from ocrquant.checkpoint import StoredCheckpoint
from ocrquant.engine.loading import Runtime, RuntimeSettings, load_runtime
from ocrquant.errors import PagesError
from ocrquant.evaluate.arms import check_checkpoint, environment_digest, uniform_arm
from ocrquant.evaluate.gate import enforce_gate
from ocrquant.evaluate.reading import Speed, read_pages
from ocrquant.evaluate.report import IMAGE_FOLDER, RunFacts, build_report, write_pages
from ocrquant.evaluate.truth import longest_sequence
from ocrquant.formats import Precision
from ocrquant.models.processing import open_processor
from ocrquant.pages import Page, page_image
from ocrquant.recipe.sections import EvaluateSection, GateSection

__all__ = ["encode_image", "evaluate_run"]

_LOSSLESS_PIXELS = 500_000
_MAX_WIDTH = 1600
_UNIFORM: dict[ArmName, Precision] = {"fp8": Precision.FP8, "nvfp4": Precision.NVFP4}


def evaluate_run(
    run: RunFolder,
    pages: Sequence[Page],
    section: EvaluateSection,
    inputs: Mapping[str, str],
    *,
    gate: GateSection | None,
    model: str,
    source: Path,
    device: torch.device,
    prompts: Mapping[str, str],
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
        model: The model as the recipe names it.
        source: Its folder, not quantized.
        device: Where the arms run.
        prompts: Instructions of the recipe for some kinds of page.
        recipe_sha256: Digest of the resolved recipe.
        seed: Seed of the bootstrap.

    Raises:
        GateError: A threshold is exceeded; the report is written.
        PagesError: There is no held-out page.
        ArtifactError: An artefact is missing, malformed, or not the one that another was made from.
        ImageError: An image cannot be read.
        ModelError: The runtime does not run the model.
        PageSizeError: A page with its truth exceeds the context of the model.
        OutputError: The folder is not writable or the disk is full.
    """
    if not run.is_current(Report, inputs):
        if not pages:
            raise PagesError("held-out pages", expected="at least one", given="none", fix="add pages")
        plan = _ArmPlan.of(run, section)
        engines = _Engines(source, device, prompts)
        transcripts = _transcripts(run, engines, pages, section, plan)
        report = build_report(
            run,
            transcripts,
            arm_groups=plan.groups,
            save_images=bind(_save_images, run.path, {page.id: page for page in pages}),
            evaluate=section,
            gate=gate,
            facts=RunFacts(
                model=model,
                recipe_sha256=recipe_sha256,
                source_bytes=sum(file.stat().st_size for file in source.rglob("*") if file.is_file()),
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


@dataclass(frozen=True, slots=True)
class _ArmPlan:
    """What each arm consists of, before any weight is read.

    Attributes:
        names: Arms, bf16 first.
        groups: Precision by group in bf16 and the uniform arms.
        record: The checkpoint that holds the plan.
        has_fp8_cache: Whether it keeps FP8 caches.
    """

    names: list[ArmName]
    groups: dict[ArmName, dict[str, Precision]]
    record: CheckpointRecord
    has_fp8_cache: bool

    @classmethod
    def of(cls, run: RunFolder, section: EvaluateSection) -> _ArmPlan:
        groups = run.load(Sensitivity).groups
        record = run.load(CheckpointRecord)
        check_checkpoint(run.path, record, run.digests)
        with StoredCheckpoint(run.path / record.folder) as stored:
            has_fp8_cache = bool(stored.kv)
        names: list[ArmName] = ["bf16", *(name for name in section.arms if name != "bf16")]
        found: dict[ArmName, dict[str, Precision]] = {
            name: uniform_plan(groups, _UNIFORM[name]) if name in _UNIFORM else {}
            for name in names
            if name != "plan"
        }
        return cls(names, found, record, has_fp8_cache)

    def makers(
        self, run: RunFolder, source: Path, settings: RuntimeSettings
    ) -> list[tuple[ArmName, Callable[[], Runtime]]]:
        """What makes each arm when its turn comes."""
        rounding = run.load(Rounding)
        made: dict[ArmName, Callable[[], Runtime]] = {
            "bf16": bind(load_runtime, source, settings),
            "plan": bind(load_runtime, run.path / self.record.folder, settings),
        }
        for name in _UNIFORM.keys() & self.groups.keys():
            made[name] = bind(
                uniform_arm,
                self.groups[name],
                rounding,
                run.path,
                source,
                settings,
                has_fp8_cache=self.has_fp8_cache,
            )
        return [(name, made[name]) for name in self.names]


@dataclass(frozen=True, slots=True)
class _Engines:
    """Where and how all arms run.

    Attributes:
        source: Folder of the unquantized model.
        device: Where they run.
        prompts: Instructions for some kinds of page.
    """

    source: Path
    device: torch.device
    prompts: Mapping[str, str]

    def settings(self, batch_size: int, longest: int) -> RuntimeSettings:
        """The same for every arm, so that their steps have the same sizes."""
        return RuntimeSettings(
            max_requests=batch_size,
            max_length=longest,
            device=str(self.device),
            queue_limit=batch_size,
            prompts=self.prompts,
        )


def _transcripts(
    run: RunFolder,
    engines: _Engines,
    pages: Sequence[Page],
    section: EvaluateSection,
    plan: _ArmPlan,
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
    processor = open_processor(engines.source, engines.prompts)
    longest = longest_sequence(processor, pages, section.max_new_tokens)
    asked = engines.settings(min(section.batch_size, len(pages)), longest)
    partial = run.partial(Transcripts.STAGE, {**inputs, "environment": environment_digest(asked)})
    found = read_pages(
        processor,
        pages,
        plan.makers(run, engines.source, asked),
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
