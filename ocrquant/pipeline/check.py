"""What a recipe would do, found out before any work: groups, patterns, budgets, sizes, memory and time.

Reads configs, tensor headers, tables and page headers only; weights and pixels stay on the disk, but for the
embedding where a drafter has to be held against it. Everything
that can be refused now is refused now, with the error that the stage itself would raise.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrquant.adapters import Group, ModelMap, SearchSpace, model_folder, read_model_map, resolve_device
from ocrquant.artifacts import Sensitivity, SensitivityRow
from ocrquant.assign import choose_formats, terms_of
from ocrquant.assign.problem import nearest_open
from ocrquant.errors import OutputError, PagesError
from ocrquant.export import check_target, export_choices
from ocrquant.formats import FORMATS, Precision
from ocrquant.metrics.equivalence import MIN_CLUSTERS
from ocrquant.pages import Page
from ocrquant.pipeline.context import resolve_space, select_pages
from ocrquant.pipeline.effort import Effort, foresee
from ocrquant.pipeline.evaluated_drafter import check_drafter
from ocrquant.recipe import Recipe
from ocrquant.sensitivity.candidates import group_record

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The resolved plan of work.

    Attributes:
        recipe: What was checked.
        folder: The model.
        map: Its structure.
        space: Which precisions are open to each group, and what each pattern matched.
        pages: The selected pages.
        effort: Memory, disk and time foreseen.
        device: Where the run would happen.
        drafter: The drafter of the evaluation, in words; None without one.
    """

    recipe: Recipe
    folder: Path
    map: ModelMap
    space: SearchSpace
    pages: list[Page]
    effort: Effort
    device: str
    drafter: str | None = None

    def render(self) -> str:
        """The plan of work as text."""
        parts = (
            self._model(),
            self._space(),
            self._budget(),
            self._times(),
            self._export(),
            [f"drafter   {self.drafter}"] if self.drafter else [],
            self._pages(),
            self.effort.lines(),
        )
        return "\n".join(line for part in parts for line in part)

    def _model(self) -> list[str]:
        return [
            f"model     {self.folder}: {self.map.architecture}, {self.map.num_blocks} decoder layers,"
            f" {self.map.num_weights:,} searched weights in {len(self.map.groups)} groups,"
            f" device {self.device}",
            f"untouched {len(self.map.vision)} vision modules,"
            f" {len(self.map.kept)} decoder linears that always stay bf16,"
            f" {len(self.map.mtp) + len(self.map.other)} further tensors copied as they are",
            *(f"guess     {guess}" for guess in self.map.guesses),
        ]

    def _space(self) -> list[str]:
        kinds: dict[tuple[str, tuple[Precision, ...]], list[Group]] = {}
        for group in self.map.groups:
            kinds.setdefault((group.kind, self.space.choices[group.name]), []).append(group)
        rows = [
            f"group     {kind}: {len(groups)} groups, {sum(g.num_weights for g in groups):,} weights, "
            + " | ".join(precisions)
            for (kind, precisions), groups in kinds.items()
        ]
        rows += [f"pattern   {m.where} {m.pattern!r}: {len(m.linears)} linears" for m in self.space.matches]
        rows += [f"limited   {i.group} cannot be {i.precision}: {i.reason}" for i in self.space.ineligible]
        rows += [
            f"kept      {reason}: {count} linears"
            for reason, count in Counter(self.map.kept.values()).items()
        ]
        return rows

    def _budget(self) -> list[str]:
        budget = self.recipe.assign.budget
        ends = []
        for pick in (min, max):
            chosen = {g: pick(self.space.choices[g.name], key=g.weight_bytes) for g in self.map.groups}
            bits = (
                sum(FORMATS[p].bits_per_weight * g.num_weights for g, p in chosen.items())
                / self.map.num_weights
            )
            ends.append((bits, sum(g.weight_bytes(p) for g, p in chosen.items())))
        (low_bits, low_bytes), (high_bits, high_bytes) = ends
        value = f"{budget.value:,.0f}" if budget.kind == "weight_bytes" else f"{budget.value:g}"
        return [
            f"budget    {budget.kind} {value}; reachable {low_bits:.3f} to {high_bits:.3f}"
            f" bits a weight, {low_bytes:,} to {high_bytes:,} bytes"
        ]

    def _times(self) -> list[str]:
        """A step's linears on the machine that the recipe names, in one format each."""
        step = terms_of(self.recipe.assign).step
        if step is None:
            return []
        rows = []
        for precision in FORMATS:
            plan = {g: nearest_open(self.space.choices[g.name], precision) for g in self.map.groups}
            if precision in plan.values():
                total = sum(
                    step.group_ns(
                        [(linear.out_features, linear.in_features) for linear in group.linears], chosen
                    )
                    for group, chosen in plan.items()
                )
                note = step.timing.note(precision)
                rows.append(f"step      {precision} {total / 1000:.5g} us{f'; {note}' if note else ''}")
        return [*rows, f"step      linears alone, {step.words}"]

    def _export(self) -> list[str]:
        file_format, target = export_choices(self.recipe.export)
        return [f"export    {file_format}, {f'which {target} reads' if target else 'no target named'}"]

    def _pages(self) -> list[str]:
        rows = []
        for split in ("calibration", "heldout"):
            chosen = [page for page in self.pages if page.split == split]
            kinds = ", ".join(
                f"{count} {kind}" for kind, count in sorted(Counter(p.kind for p in chosen).items())
            )
            documents = len({page.document for page in chosen})
            rows.append(f"pages     {split}: {len(chosen)} ({kinds}) of {documents} documents")
        if any(page.text is None for page in self.pages):
            rows.append("truth     none given: the bf16 model's own transcription stands in for it")
        if self.recipe.evaluate.equivalence is not None:
            rows += [
                f"verdict   none on {kind}s, from {count} documents: at least {MIN_CLUSTERS} are needed"
                for kind, count in _few_documents(self.pages).items()
            ]
        return rows


def check_recipe(recipe: Recipe, *, device: str | None = None) -> CheckResult:
    """Everything that can be known of a run beforehand.

    Args:
        recipe: Resolved recipe.
        device: Device asked for on the command line; None follows the recipe.

    Raises:
        OcrQuantError: Whatever would fail later: see `ocrquant.errors`.
    """
    chosen = resolve_device(device or recipe.device)
    folder = model_folder(recipe.model.path)
    section = recipe.model
    model_map = read_model_map(folder, section.allow_remote_code, allow_generic=section.allow_generic)
    space = resolve_space(model_map, recipe)
    _check_target(model_map, space, recipe)
    _check_budget(model_map, space, recipe)
    pages = select_pages(recipe)
    _check_verdict(recipe, pages)
    drafter = check_drafter(recipe, folder)
    effort = foresee(recipe, model_map, space, pages, chosen)
    _check_output(Path(recipe.output), effort.disk)
    return CheckResult(
        recipe=recipe,
        folder=folder,
        map=model_map,
        space=space,
        pages=pages,
        effort=effort,
        device=str(chosen),
        drafter=drafter,
    )


def _check_target(model_map: ModelMap, space: SearchSpace, recipe: Recipe) -> None:
    """Refuse a search that may end in a plan that the target cannot read."""
    file_format, target = export_choices(recipe.export)
    if target is None:
        return
    choices = {
        linear.name: space.choices[group.name] for group in model_map.groups for linear in group.linears
    }
    choices |= {name: (Precision.BF16,) for name in model_map.kept}
    has_kv = recipe.export.kv_cache != "bf16"
    check_target(target, file_format, model_map, choices, has_kv=has_kv)


def _check_budget(model_map: ModelMap, space: SearchSpace, recipe: Recipe) -> None:
    """Let the solver itself refuse a limit of bits, bytes or time, and terms that nothing meets.

    Every score is zero here: what a KL can reach, and how large a scored cache is, is known after scoring.
    """
    groups, rows = [], []
    for group in model_map.groups:
        precisions = list(space.choices[group.name])
        groups.append(group_record(group, precisions))
        rows += [
            SensitivityRow(
                group=group.name,
                precision=precision,
                score="kl",
                is_measured=True,
                mean=0.0,
                standard_error=0.0,
                num_pages=1,
                num_tokens=1,
                bits_per_weight=FORMATS[precision].bits_per_weight,
                weight_bytes=group.weight_bytes(precision),
            )
            for precision in precisions
            if precision != Precision.BF16
        ]
    terms = terms_of(recipe.assign, recipe.export.kv_cache)
    choose_formats(Sensitivity(inputs={}, groups=groups, rows=rows), recipe.assign.budget, {}, terms=terms)


def _few_documents(pages: Sequence[Page]) -> dict[str, int]:
    """Kinds of held-out page from too few documents for a verdict on equivalence, and how many these are."""
    documents: dict[str, set[str]] = {}
    for page in pages:
        if page.split == "heldout":
            documents.setdefault(page.kind, set()).add(page.document)
    return {kind: len(found) for kind, found in documents.items() if len(found) < MIN_CLUSTERS}


def _check_verdict(recipe: Recipe, pages: Sequence[Page]) -> None:
    """A gate that no result could pass is refused now."""
    few = _few_documents(pages)
    if recipe.gate is not None and recipe.gate.require_equivalence and few:
        kind = min(few, key=lambda kind: few[kind])
        raise PagesError(
            f"held-out {kind}s for gate.require_equivalence",
            expected=f"at least {MIN_CLUSTERS} documents",
            given=few[kind],
            fix="hold out more documents, leave this kind out of pages.kinds, or remove the requirement",
        )


def _check_output(folder: Path, disk: Mapping[str, int]) -> None:
    """The run folder can be written and has room for what is still missing."""
    parent = folder
    while not os.path.exists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise OutputError(folder, expected="a folder", given=f"{parent} is a file", fix="name another output")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(
            folder,
            expected="a folder that can be written",
            given=f"{parent}, which cannot",
            fix="name another output, or change the rights",
        )
    needed = sum(size for name, size in disk.items() if not (folder / name).exists())
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise OutputError(
            folder,
            expected=f"{needed / GIB:.2f} GiB free for the run",
            given=f"{free / GIB:.2f} GiB",
            fix="free space or name an output on another disk",
        )
