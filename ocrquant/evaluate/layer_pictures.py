"""Pictures with one place for each layer: scores, the plan, outliers.

Knows how artefacts are drawn. Does not know where they lie or what page they are put on.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from ocrquant.artifacts import Assignment, Sensitivity, Statistics
from ocrquant.artifacts.sensitivity import ScoreKind, SensitivityRow
from ocrquant.evaluate.places import PlaceGrid, place_of
from ocrquant.evaluate.theme import COLORS, HEAT, INK, MUTED, SURFACE, new_figure, picture, quiet_axes
from ocrquant.evaluate.words import NOTHING, PRECISION_NAMES, number
from ocrquant.formats import FORMATS, Precision

__all__ = ["activation_outliers", "assignment_strip", "score_kind", "sensitivity_heat_map"]

_WIDTH = 7.6
_ROW = 0.27
_MAX_LABELLED_COLUMNS = 20
_SHADES = 24
_DECADES = 4
_FAINTEST = 0.07
_CELL_HEIGHT, _FLAT_HEIGHT = 0.88, 0.44
_SCORE_LABELS = {
    "kl": "KL divergence from bf16, nats a token",
    "loss": "mean absolute change of the loss",
    "gradient": "KL divergence estimated from gradients, nats a token",
    "screened": "KL divergence from bf16, measured or estimated, nats a token",
}


def score_kind(sensitivity: Sensitivity) -> ScoreKind:
    """The score that a plan follows."""
    return sensitivity.plan_score


@picture
def sensitivity_heat_map(sensitivity: Sensitivity, score: ScoreKind | None = None) -> Figure:
    """How much each group suffers from each format: one panel a format, layers across, roles down.

    Shades are logarithmic over at most four decades. A dot marks a score within two standard errors of
    zero; a dash marks a group that the format is closed to. Of screened scores, those that were estimated
    and not measured are flat.

    Args:
        sensitivity: The scores.
        score: Which of them; by default the one that the plan follows.
    """
    score = score or score_kind(sensitivity)
    rows = {(row.group, row.precision): row for row in sensitivity.rows if row.score == score}
    grid = PlaceGrid(sensitivity.groups)
    formats = [precision for precision in FORMATS if any(key[1] == precision for key in rows)]
    high = max((row.mean for row in rows.values()), default=0.0) or 1.0
    positive = [row.mean for row in rows.values() if row.mean > 0]
    low = max(min(positive, default=high), high * 10.0**-_DECADES)
    panels = len(formats)
    heights = [len(grid.roles)] * panels + [1]
    figure, axes = new_figure(
        _WIDTH,
        _ROW * sum(heights) + 0.42 * panels + 0.55,
        nrows=panels + 1,
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    for index, precision in enumerate(formats):
        panel = axes[index, 0]
        _set_up_grid(panel, grid, PRECISION_NAMES[precision], labels=index == panels - 1)
        for group in sensitivity.groups:
            row = rows.get((group.name, precision))
            _draw_score(panel, grid.cell(group.name), row, low, high)
    _draw_scale(axes[panels, 0], low, high, _SCORE_LABELS[score])
    return figure


@picture
def assignment_strip(assignment: Assignment, sensitivity: Sensitivity) -> Figure:
    """What each group became, layers across and roles down, and the share of weights in each precision.

    Args:
        assignment: The plan.
        sensitivity: For the sizes of the groups and their order in the model.
    """
    num_weights = {group.name: group.num_weights for group in sensitivity.groups}
    names = [name for name in num_weights if name in assignment.groups]
    grid = PlaceGrid([group for group in sensitivity.groups if group.name in assignment.groups])
    heights = [len(grid.roles), 1]
    figure, axes = new_figure(
        _WIDTH, _ROW * sum(heights) + 1.15, nrows=2, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    panel = axes[0, 0]
    _set_up_grid(panel, grid, "", labels=True)
    share: Counter[Precision] = Counter()
    for name in names:
        precision = assignment.groups[name]
        share[precision] += num_weights[name]
        row, column = grid.cell(name)
        _draw_cell(panel, row, column, COLORS[precision], 1.0)
        if len(grid.columns) <= _MAX_LABELLED_COLUMNS:
            bits = str(FORMATS[precision].element_bits)
            panel.text(column, row, bits, color=SURFACE, ha="center", va="center", fontsize=8)
    _draw_shares(axes[1, 0], share)
    return figure


@picture
def activation_outliers(statistics: Statistics) -> Figure:
    """How far the largest input channel of each linear stands above its median channel, layer by layer.

    Args:
        statistics: What was observed on the calibration pages; linears whose median channel is dead are
            left out.
    """
    figure, axes = new_figure(_WIDTH, 2.9)
    blocks = [place_of(linear.name).block for linear in statistics.linears]
    last = max((block for block in blocks if block is not None), default=-1)
    for positions, label, color, face, size in (
        ("image", "image positions", MUTED, "none", 22),
        ("text", "text positions", HEAT, HEAT, 16),
    ):
        found = [
            (last + 1 if block is None else block, getattr(linear, positions).outlier_ratio)
            for linear, block in zip(statistics.linears, blocks, strict=True)
        ]
        points = [(block, ratio) for block, ratio in found if ratio > 0]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.scatter(xs, ys, s=size, facecolors=face, edgecolors=color, linewidths=1.1, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=16))
    head = None in blocks
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "head" if head and value == last + 1 else f"{value:g}")
    )
    axes.set_xlabel("layer")
    axes.set_title("largest channel over median channel")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.2, handletextpad=0.2)
    quiet_axes(axes, grid="y")
    return figure


def _set_up_grid(axes: Any, grid: PlaceGrid, title: str, *, labels: bool) -> None:
    axes.set_xlim(-0.5, max(len(grid.columns), 8) - 0.5)
    axes.set_ylim(len(grid.roles) - 0.5, -0.5)
    axes.set_yticks(range(len(grid.roles)), grid.roles)
    step = math.ceil(len(grid.columns) / 24)
    shown = [index for index in range(len(grid.columns)) if index % step == 0 or not grid.columns[index]]
    axes.set_xticks(shown, [grid.columns[index] for index in shown])
    quiet_axes(axes, grid=None)
    axes.tick_params(labelbottom=labels)
    if labels:
        axes.set_xlabel("layer", loc="left")
    axes.set_title(title)


def _draw_cell(
    axes: Any, row: int, column: int, color: str, alpha: float, *, height: float = _CELL_HEIGHT
) -> None:
    corner = column - 0.47, row - height / 2
    axes.add_patch(Rectangle(corner, 0.94, height, facecolor=color, edgecolor="none", alpha=alpha))


def _shade(value: float, low: float, high: float) -> float:
    """Opacity of a score on the logarithmic scale between two positive ones."""
    if high <= low:
        return 1.0
    level = math.log(max(value, low) / low) / math.log(high / low)
    return _FAINTEST + (1.0 - _FAINTEST) * min(level, 1.0)


def _draw_score(
    axes: Any, cell: tuple[int, int], row: SensitivityRow | None, low: float, high: float
) -> None:
    y, x = cell
    if row is None:
        axes.text(x, y, NOTHING, color=MUTED, ha="center", va="center")
        return
    shade = _shade(row.mean, low, high)
    is_estimated = row.score == "screened" and not row.is_measured
    _draw_cell(axes, y, x, HEAT, shade, height=_FLAT_HEIGHT if is_estimated else _CELL_HEIGHT)
    if row.mean <= 2 * row.standard_error:
        color = INK if shade < 0.5 else SURFACE
        axes.plot(x, y, marker="o", markersize=2.4, color=color, linestyle="none")


def _draw_scale(axes: Any, low: float, high: float, label: str) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    width = 0.36 / _SHADES
    for step in range(_SHADES):
        alpha = _shade(low * (high / low) ** (step / (_SHADES - 1)), low, high)
        # Without antialiasing: seams between the steps would show.
        corner = step * width, 0.5
        axes.add_patch(Rectangle(corner, width, 0.5, color=HEAT, linewidth=0, alpha=alpha, antialiased=False))
    texts = [
        axes.text(0, 0.3, number(low), ha="left", va="top"),
        axes.text(0.36, 0.3, number(high), ha="right", va="top"),
        axes.text(0.38, 0.72, label, ha="left", va="center"),
    ]
    for text in texts:
        text.set(color=MUTED, fontsize=8.5, in_layout=False)
    axes.set_axis_off()


def _draw_shares(axes: Any, share: Counter[Precision]) -> None:
    total = sum(share.values()) or 1
    left = 0.0
    smallest_first = list(FORMATS)[::-1]
    axes.set_xlim(0, 1)
    axes.set_ylim(-1.2, 1)
    for precision in smallest_first:
        part = share[precision] / total
        if not part:
            continue
        axes.add_patch(Rectangle((left, 0), part, 1, facecolor=COLORS[precision], edgecolor="none"))
        left += part
    shown = [precision for precision in smallest_first if share[precision]]
    for index, precision in enumerate(shown):
        x = index * 0.33
        axes.add_patch(Rectangle((x, -1.02), 0.018, 0.62, facecolor=COLORS[precision], edgecolor="none"))
        text = f"{PRECISION_NAMES[precision]}: {share[precision] / total:.0%} of the weights".replace(
            "%", " %"
        )
        axes.text(x + 0.026, -0.71, text, ha="left", va="center", fontsize=8.5, in_layout=False)
    axes.set_axis_off()
