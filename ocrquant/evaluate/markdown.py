"""``report.md``: the same numbers as plain text, for a terminal, a diff or a pull request.

Knows Markdown. Knows no file.
"""

from __future__ import annotations

import re

from ocrquant.artifacts import PageOutput, Report
from ocrquant.evaluate.diff import Span, differences, shorten, visible
from ocrquant.evaluate.draft_words import DRAFTS_TITLE, drafts_lead, drafts_table, survival_table
from ocrquant.evaluate.gate import verdict
from ocrquant.evaluate.material import Material
from ocrquant.evaluate.runtime_table import runtime_lead, runtime_table
from ocrquant.evaluate.tables import (
    Table,
    arms_table,
    chain_table,
    comparison_table,
    gate_table,
    kinds_table,
    outliers_table,
    sensitive_groups_table,
    timings_table,
    weight_steps_table,
)
from ocrquant.evaluate.verdict import EQUIVALENCE_LEAD, broken_outputs_table, equivalence_table
from ocrquant.evaluate.words import ARM_NAMES, STAND_IN, basis, percent

__all__ = ["render_markdown"]

_MAX_CHARACTERS = 1500
_BRACKETS = {"same": ("", ""), "missing": ("[-", "-]"), "added": ("{+", "+}")}
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>#|&])")


def render_markdown(material: Material) -> str:
    """The whole text; equal material gives equal text."""
    report = material.report
    found = verdict(report)
    parts = [f"**{found.title}.** {found.sentence}", f"# {_plain(report.model)}", basis(report) + "."]
    if report.is_judged_by_model:
        parts.append(f"**{STAND_IN}**")
    parts += ["\n".join(f"- {_plain(note)}" for note in report.notes)] if report.notes else []
    parts += [_table(gate_table(report))] if report.gate else []
    if report.equivalence is not None:
        parts.append(_section(report, "Equal to bf16?", equivalence_table(report.equivalence, report)))
        parts.append(EQUIVALENCE_LEAD)
    parts += [_section(report, "Plans side by side", arms_table(report))]
    parts += [_section(report, "By kind of page", kinds_table(report))]
    parts += ["## Loops, cut-off and empty outputs", _table(broken_outputs_table(report))]
    if report.comparisons:
        parts.append(_section(report, "The plan against uniform formats", comparison_table(report)))
    if report.drafts is not None:
        drafts = report.drafts
        parts += [f"## {DRAFTS_TITLE}", _plain(drafts_lead(drafts))]
        parts += [_table(drafts_table(drafts)), _table(survival_table(drafts))]
    parts += _layers(material)
    parts += _worst_pages(report)
    parts += _provenance(material)
    return "\n\n".join(parts) + "\n"


def _section(report: Report, title: str, content: Table) -> str:
    reservation = f"{STAND_IN}\n\n" if report.is_judged_by_model else ""
    return f"## {title}\n\n{reservation}{_table(content)}"


def _layers(material: Material) -> list[str]:
    parts = []
    if material.sensitivity is not None and material.assignment is not None:
        ranking = sensitive_groups_table(material.sensitivity, material.assignment)
        parts += ["## Most sensitive groups", _table(ranking)]
    if material.rounding is not None and (steps := weight_steps_table(material.rounding)).rows:
        parts += ["## Weights", _table(steps)]
    if material.statistics is not None:
        parts += ["## Activations", _table(outliers_table(material.statistics))]
    return parts


def _worst_pages(report: Report) -> list[str]:
    if not report.worst_pages:
        return []
    legend = "In an output, `{+this+}` is not in the truth and `[-this-]` is only there."
    parts = ["## Pages that lost most", legend]
    for page in report.worst_pages:
        parts += _case(report, page)
    return parts


def _case(report: Report, page: PageOutput) -> list[str]:
    rates = ", ".join(f"{ARM_NAMES[arm]} {percent(rate)}" for arm, rate in page.cer.items())
    error = "CER to bf16" if report.is_judged_by_model else "CER"
    parts = [f"### {_plain(page.page)}", f"{error}: {rates}. Image: {_plain(page.image)}"]
    if report.is_judged_by_model:
        parts.append(STAND_IN)
    texts = [("bf16's own text" if report.is_judged_by_model else "Truth", [Span("same", page.truth)])]
    texts += [
        (ARM_NAMES[arm], differences(page.truth, page.outputs[arm]))
        for arm in ("bf16", "plan")
        if arm in page.outputs and not (arm == "bf16" and report.is_judged_by_model)
    ]
    for name, spans in texts:
        parts += [f"{name}:", _fenced(*shorten(spans, _MAX_CHARACTERS))]
    return parts


def _fenced(spans: list[Span], num_cut: int) -> str:
    text = visible("".join(f"{_BRACKETS[s.kind][0]}{s.text}{_BRACKETS[s.kind][1]}" for s in spans))
    if num_cut:
        text += f"\n… {num_cut:,} more characters"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _provenance(material: Material) -> list[str]:
    report = material.report
    versions = ", ".join(f"{name} {version}" for name, version in report.producer)
    words = (
        f"Recipe {report.recipe_sha256}. Written by {versions}. Intervals from "
        f"{report.num_bootstrap_samples:,} resamples of the documents, seed {report.seed}."
    )
    parts = ["## Where the numbers come from", runtime_lead(report), _table(runtime_table(report))]
    parts += [_table(chain_table(report)), words]
    if material.timings:
        parts += ["## Timings", _table(timings_table(material.timings))]
    return parts


def _table(content: Table) -> str:
    rules = [":--" if index < content.num_text_columns else "--:" for index in range(len(content.header))]
    lines = [content.header, *content.rows]
    text = [f"| {' | '.join(_plain(cell) for cell in line)} |" for line in lines]
    return "\n".join([text[0], f"| {' | '.join(rules)} |", *text[1:]])


def _plain(text: str) -> str:
    """Foreign text on one line, without effect as Markdown or HTML."""
    return _ACTIVE.sub(r"\\\1", visible(text).replace("\n", " "))
