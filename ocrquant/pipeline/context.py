"""What the stages of one run share: recipe, run folder, model and pages.

Knows where each comes from. Knows nothing of what a stage does with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from ocrquant.adapters import (
    DocumentModel,
    ModelMap,
    SearchSpace,
    load_model,
    model_folder,
    read_model_map,
    resolve_device,
    search_space,
)
from ocrquant.artifacts import PageSet, RunFolder, sha256_data
from ocrquant.distributed import local_index, ranks
from ocrquant.pages import Page, from_record, load_pages, page_digest
from ocrquant.pipeline.memory import choose_residency
from ocrquant.recipe import Recipe
from ocrquant.recipe.sections import PagesSection


@dataclass(kw_only=True)
class Context:
    """One run.

    Attributes:
        recipe: Resolved recipe.
        run: Its open run folder.
        device: Device asked for on the command line; None follows the recipe.
    """

    recipe: Recipe
    run: RunFolder
    device: str | None = None
    _document: DocumentModel | None = field(default=None, init=False)

    @cached_property
    def model_folder(self) -> Path:
        """The unquantized model on disk."""
        return model_folder(self.recipe.model.path)

    @cached_property
    def map(self) -> ModelMap:
        """Structure of the model, from configs and tensor headers."""
        section = self.recipe.model
        return read_model_map(
            self.model_folder, section.allow_remote_code, allow_generic=section.allow_generic
        )

    @cached_property
    def model_digest(self) -> str:
        """SHA-256 over names and bytes of the model folder."""
        return self.run.digests.folder(self.model_folder)

    @cached_property
    def source_pages(self) -> list[Page]:
        """The pages that the recipe selects, as the source states them."""
        return select_pages(self.recipe)

    @cached_property
    def place(self) -> torch.device:
        """The device of this process: each of several on a machine has a GPU of its own."""
        place = resolve_device(self.device or self.recipe.device)
        if place.type == "cuda" and ranks().count > 1:
            return resolve_device(f"cuda:{local_index()}")
        return place

    @cached_property
    def residency(self) -> Literal["whole", "block"]:
        """How much of the model is in memory at a time; the same for all processes of the run."""
        return ranks().gather(choose_residency(self.recipe, self.map, self.place))[0]

    @cached_property
    def prompts(self) -> dict[str, str]:
        """Instructions of the recipe by kind of page."""
        return {str(kind): text for kind, text in self.recipe.model.prompts.items()}

    @property
    def needs_transcription(self) -> bool:
        """Whether some page has no truth, so that the bf16 model's own transcription stands in for it."""
        return any(page.text is None for page in self.source_pages)

    @cached_property
    def source_digest(self) -> str:
        """SHA-256 of the selected pages: images, truth and splits."""
        return sha256_data(
            [[page.id, page.split, page.kind, page_digest(page)] for page in self.source_pages]
        )

    def document(self) -> DocumentModel:
        """The model in bf16 on the device of the run; loaded once, or read as it is used (`residency`)."""
        if self._document is None:
            self._document = load_model(
                self.model_folder,
                self.place,
                prompts=self.prompts,
                allow_remote_code=self.recipe.model.allow_remote_code,
                allow_generic=self.recipe.model.allow_generic,
                residency=self.residency,
            )
        return self._document

    def fresh_document(self, dtype: torch.dtype) -> DocumentModel:
        """The model loaded once more, whole, for whoever rebuilds it."""
        return load_model(
            self.model_folder,
            self.place,
            dtype,
            prompts=self.prompts,
            allow_remote_code=self.recipe.model.allow_remote_code,
            allow_generic=self.recipe.model.allow_generic,
        )

    def pages(self, split: str) -> list[Page]:
        """Pages of one split, each with a text, as ``pages.json`` states them."""
        records = self.run.load(PageSet).pages
        return [from_record(record, self.recipe.pages.source) for record in records if record.split == split]


def resolve_space(model_map: ModelMap, recipe: Recipe) -> SearchSpace:
    """Which precisions a recipe leaves open to each group."""
    search = recipe.search
    return search_space(model_map, recipe.sensitivity.candidates, search.keep_bf16, search.force)


def select_pages(recipe: Recipe) -> list[Page]:
    """Lists and selects the pages of a recipe, from names, tables and headers."""
    section = recipe.pages
    counts = section.num_calibration_pages, section.num_heldout_pages
    return pages_like(section, section.source, *counts)


def pages_like(
    section: PagesSection, source: str, num_calibration_pages: int | None, num_heldout_pages: int
) -> list[Page]:
    """Pages of any source, taken as a section says: its kinds, its split, its seed."""
    return load_pages(
        source,
        num_calibration_pages=num_calibration_pages,
        num_heldout_pages=num_heldout_pages,
        heldout_fraction=section.heldout_fraction,
        seed=section.seed,
        kinds=section.kinds,
        default_kind=section.default_kind,
        dpi=section.dpi,
        max_pixels=section.max_pixels,
    )
