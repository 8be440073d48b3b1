"""``report.html``: one file that needs nothing else, for a large screen, a telephone or paper, light or dark.

Knows the order of the sections and their words. Knows no file.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

from ocrquant.artifacts import PageOutput, Report
from ocrquant.evaluate import pictures
from ocrquant.evaluate.diff import Span, differences, shorten
from ocrquant.evaluate.draft_words import DRAFTS_TITLE, drafts_lead, drafts_table, survival_table
from ocrquant.evaluate.gate import verdict
from ocrquant.evaluate.html_budget import budget_section, pages_behind_figure
from ocrquant.evaluate.html_parts import data_uri, escape, figure, marked, section, table
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
from ocrquant.evaluate.theme import to_svg
from ocrquant.evaluate.verdict import EQUIVALENCE_LEAD, broken_outputs_table, equivalence_table
from ocrquant.evaluate.words import ARM_NAMES, KIND_NAMES, STAND_IN, basis, percent

__all__ = ["MAX_CHARACTERS", "render_html"]

MAX_CHARACTERS = 3000
"""Longest text of a worst page that is shown; an output that loops is cut there."""

_LEADS = {
    "arms": "Greedy output of every arm on the same held-out pages. Δ is the difference to bf16 with "
    "its 95 % interval, documents resampled. Cut off: the token limit ended the output.",
    "quality": "The line is the best plan that the scores allow at each size. Scores of single groups are "
    "added up, so predictions and measurements may part where the errors of many groups meet.",
    "sensitivity": "Each cell is one group of linears that must share a format. A dot: within two standard "
    "errors of zero. A dash: the format is closed to this group. A flat cell: estimated, not measured.",
    "plan": "Bits of one element in each group. Vision encoder, norms and embeddings stay in bf16 and "
    "are not counted.",
    "nearest": "Rounded to nearest: the recipe turns every other step off.",
    "weights": "A step beyond rounding to nearest is kept only where it lowers the output error of its "
    "layer on {num_pages} calibration pages that nothing else has used.",
    "outliers": "Largest input channel over the median channel on the calibration pages. High ratios are "
    "what smoothing is for, and where 4-bit activations lose most.",
    "worst": "Held-out pages on which the plan lost most against bf16, the worst first.",
    "provenance": "Every file with its digest and those of what it was made from, back to the pages.",
}
# At the foot of every sheet of paper; on a screen the sentence stands at each table and page.
_SHEET = f'@page {{ @bottom-left {{ content: "{STAND_IN}"; font: 8.5pt sans-serif; color: #8a5a00; }} }}\n'
_LEGEND = (
    '<p class="legend">In an output, <ins>underlined</ins> text is not in the truth and '
    "<del>struck out</del> text is only there.</p>"
)


def render_html(material: Material) -> str:
    """The whole page; equal material gives equal text."""
    report = material.report
    parts = [
        _head(report),
        _verdict(report),
        _equivalence(report),
        _arms(report),
        _kinds(report),
        _drafts(report),
        _quality(material),
        budget_section(material),
        _sensitivity(material),
        _assignment(material),
        _weights(material),
        _outliers(material),
        _worst_pages(material),
        _provenance(material),
    ]
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    body = "\n".join(part for part in parts if part)
    title = escape(f"{report.model}: quantization report")
    return template.substitute(title=title, body=body, sheet=_SHEET if report.is_judged_by_model else "")


def _head(report: Report) -> str:
    lines = [f"<h1>{escape(report.model)}</h1>", f"<p>{escape(basis(report))}</p>"]
    return "\n".join(["<header>", "<p>Quantization report</p>", *lines, "</header>"])


def _verdict(report: Report) -> str:
    found = verdict(report)
    parts = [
        f'<section class="verdict {found.status}">',
        f'<strong class="status">{escape(found.title)}</strong>',
        f'<p class="sentence">{escape(found.sentence)}</p>',
    ]
    if report.gate:
        parts.append(table(gate_table(report)))
    if report.is_judged_by_model:
        parts.append(f'<p class="standin">{escape(STAND_IN)}</p>')
    if report.notes:
        items = "\n".join(f"<li>{escape(note)}</li>" for note in report.notes)
        parts.append(f'<ul class="notes">\n{items}\n</ul>')
    return "\n".join([*parts, "</section>"])


def _table(report: Report, content: Table) -> str:
    """A table of error rates, with the reservation that belongs to each of them."""
    return table(content, caption=STAND_IN if report.is_judged_by_model else "")


def _equivalence(report: Report) -> str:
    if report.equivalence is None:
        return ""
    tests = _table(report, equivalence_table(report.equivalence, report))
    return section("Equal to bf16?", tests, lead=EQUIVALENCE_LEAD)


def _arms(report: Report) -> str:
    svg = ""
    if any(arm.overall.cer_increase for arm in report.arms):
        drawn = to_svg(pictures.cer_differences(report), "cer", "CER of each arm less that of bf16")
        svg = figure(drawn)
    return section(
        "Plans side by side",
        _table(report, arms_table(report)),
        svg,
        lead=_LEADS["arms"],
    )


def _kinds(report: Report) -> str:
    parts = [_table(report, kinds_table(report))]
    if report.comparisons:
        parts += ["<h3>The plan against uniform formats</h3>", _table(report, comparison_table(report))]
    parts += ["<h3>Loops, cut-off and empty outputs</h3>", table(broken_outputs_table(report))]
    return section("By kind of page", *parts)


def _drafts(report: Report) -> str:
    if report.drafts is None:
        return ""
    tables = (table(drafts_table(report.drafts)), table(survival_table(report.drafts)))
    return section(DRAFTS_TITLE, *tables, lead=drafts_lead(report.drafts))


def _quality(material: Material) -> str:
    if material.pareto is None or material.assignment is None:
        return ""
    drawn = pictures.quality_against_bits(material.pareto, material.assignment, material.report)
    return section(
        "Quality against size",
        figure(to_svg(drawn, "quality", "Predicted loss and measured CER against bits per weight")),
        lead=_LEADS["quality"],
    )


def _sensitivity(material: Material) -> str:
    if material.sensitivity is None:
        return ""
    drawn = pictures.sensitivity_heat_map(material.sensitivity)
    parts = [figure(to_svg(drawn, "sensitivity", "Score of each group in each format, by layer"))]
    if material.assignment is not None:
        ranking = sensitive_groups_table(material.sensitivity, material.assignment)
        parts += ["<h3>Most sensitive groups</h3>", table(ranking)]
    parts.append(pages_behind_figure(material))
    return section(
        "Sensitivity by layer",
        *parts,
        lead=_LEADS["sensitivity"],
    )


def _assignment(material: Material) -> str:
    if material.sensitivity is None or material.assignment is None:
        return ""
    drawn = pictures.assignment_strip(material.assignment, material.sensitivity)
    return section(
        "The plan",
        figure(to_svg(drawn, "assignment", "Format of each group, by layer")),
        lead=_LEADS["plan"],
    )


def _weights(material: Material) -> str:
    if material.rounding is None:
        return ""
    steps = weight_steps_table(material.rounding)
    if not steps.rows:
        return section("Weights", lead=_LEADS["nearest"])
    return section(
        "Weights",
        table(steps),
        lead=_LEADS["weights"].format(num_pages=material.rounding.num_held_back_pages),
    )


def _outliers(material: Material) -> str:
    if material.statistics is None:
        return ""
    drawn = pictures.activation_outliers(material.statistics)
    return section(
        "Activations",
        figure(to_svg(drawn, "outliers", "Outlier ratio of each linear's input, by layer")),
        table(outliers_table(material.statistics)),
        lead=_LEADS["outliers"],
    )


def _worst_pages(material: Material) -> str:
    report = material.report
    if not report.worst_pages:
        return ""
    cases = "\n".join(_case(page, material) for page in report.worst_pages)
    return section("Pages that lost most", _LEGEND, cases, lead=_LEADS["worst"])


def _case(page: PageOutput, material: Material) -> str:
    report = material.report
    truth = [Span("same", page.truth)]
    texts = [("bf16's own text, in place of a truth" if report.is_judged_by_model else "Truth", truth)]
    for arm in ("bf16", "plan"):
        if arm in page.outputs and not (arm == "bf16" and report.is_judged_by_model):
            texts.append((ARM_NAMES[arm], differences(page.truth, page.outputs[arm])))
    entries = "\n".join(
        f"<dt>{escape(name)}</dt><dd>{marked(*shorten(spans, MAX_CHARACTERS))}</dd>" for name, spans in texts
    )
    rates = " · ".join(f"{ARM_NAMES[arm]} {percent(rate)}" for arm, rate in page.cer.items())
    error = "CER to bf16" if report.is_judged_by_model else "CER"
    source = data_uri(page.image, material.images[page.image])
    kind = KIND_NAMES[page.kind].removesuffix("s")
    parts = [
        '<div class="case">',
        f"<h3>{escape(page.page)}</h3>",
        f'<p class="rates">{escape(kind)} of document {escape(page.document)} · {error}: {escape(rates)}</p>',
        f'<img alt="The {escape(kind)} as an image" src="{source}">',
        f'<dl class="texts">\n{entries}\n</dl>',
        f'<p class="standin">{escape(STAND_IN)}</p>' if report.is_judged_by_model else "",
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


def _provenance(material: Material) -> str:
    report = material.report
    versions = ", ".join(f"{name} {version}" for name, version in report.producer)
    parts = [
        table(runtime_table(report), caption=runtime_lead(report)),
        table(chain_table(report), digest_columns=frozenset({1, 2})),
        f"<p></p><p>Recipe {escape(report.recipe_sha256)}. Written by {escape(versions)}. Intervals from "
        f"{report.num_bootstrap_samples:,} resamples of the documents, seed {report.seed}.</p>",
    ]
    if material.timings:
        parts += ["<h3>Timings</h3>", table(timings_table(material.timings))]
    return section(
        "Where the numbers come from",
        *parts,
        lead=_LEADS["provenance"],
    )
