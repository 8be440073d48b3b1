"""Pictures of what the arms lose: against bf16 with intervals, and against their size.

Knows reports and Pareto fronts. Does not know where they lie or what page they are put on.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from ocrquant.artifacts import ArmReport, Assignment, Interval, Pareto, Report
from ocrquant.evaluate.front_pictures import LOSS_LABELS, MARKERS, draw_front, named_points
from ocrquant.evaluate.theme import COLORS, GRID, INK, MUTED, SURFACE, new_figure, picture, quiet_axes
from ocrquant.evaluate.words import ARM_NAMES, KIND_NAMES, number, signed

__all__ = ["cer_differences", "quality_against_bits"]

_WIDTH = 7.6


@picture
def cer_differences(report: Report) -> Figure:
    """CER less that of bf16 with its 95 % interval: one row a kind of page, one mark an arm.

    The gate's limits are drawn as short lines where the report has them.

    Args:
        report: The result of an evaluation.
    """
    arms = [arm for arm in report.arms if arm.name != "bf16"]
    kinds = list(arms[0].by_kind)
    labels = ["all", *[KIND_NAMES[kind] for kind in kinds]] if len(kinds) > 1 else ["all"]
    figure, axes = new_figure(_WIDTH, 0.75 + 0.24 * len(labels) * len(arms))
    step = 0.8 / len(arms)
    for order, arm in enumerate(arms):
        metrics = [arm.overall, *arm.by_kind.values()][: len(labels)]
        for row, found in enumerate(metrics):
            y = row + (order - (len(arms) - 1) / 2) * step
            _draw_interval(axes, y, found.cer_increase, arm.name)
    axes.axvline(0, color=MUTED, linewidth=1)
    for check in report.gate:
        if check.threshold == "max_cer_increase":
            axes.plot([100 * check.limit] * 2, [-0.45, 0.45], color=INK, linewidth=1.2, linestyle=(0, (3, 2)))
            axes.text(100 * check.limit, 0.47, "gate", color=INK, fontsize=8, ha="center", va="top")
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: signed(value)))
    axes.set_xlabel("CER less that of bf16, percentage points")
    quiet_axes(axes, grid="x")
    axes.tick_params(axis="y", labelcolor=INK)
    handles = [_mark(axes, arm.name) for arm in arms]
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=3,
        handletextpad=0.3,
        borderaxespad=0,
    )
    return figure


@picture
def quality_against_bits(pareto: Pareto, assignment: Assignment, report: Report) -> Figure:
    """What each size costs: the predicted front with the arms on it, and the CER that was measured.

    Hollow marks are predictions, full ones measurements; both share the upper panel only where the score is a
    KL divergence.

    Args:
        pareto: The front and the uniform plans.
        assignment: The plan, with what its scores predict.
        report: The result of an evaluation.
    """
    figure, (upper, lower) = new_figure(_WIDTH, 4.6, nrows=2, sharex=True, height_ratios=[1.25, 1])
    has_front = draw_front(upper, pareto)
    names = {str(arm.name) for arm in report.arms}
    for name, size, loss in named_points(pareto, assignment):
        if name in names:
            _point(upper, size, loss, name, is_measured=False)
    for arm in report.arms:
        if pareto.score != "gradient" and arm.overall.mean_kl is not None and arm.overall.mean_kl > 0:
            _point(upper, arm.bits_per_weight, arm.overall.mean_kl, arm.name, is_measured=True)
    upper.set_yscale("log")
    upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    upper.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    upper.set_title(LOSS_LABELS[pareto.score])
    reference = report.arms[0].overall.cer
    lower.axhline(100 * reference, color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
    for arm in report.arms:
        _draw_cer(lower, arm, reference)
    lower.set_title("character error rate, per cent, measured")
    lower.set_xlabel("bits per weight of the searched layers")
    lower.set_xlim(4, 16.6)
    lower.xaxis.set_major_locator(MultipleLocator(2))
    lower.margins(y=0.14)
    low, high = lower.get_ylim()
    if low < high / 2:
        lower.set_ylim(bottom=-0.05 * high)
    for axes in (upper, lower):
        quiet_axes(axes, grid="both")
    _key(upper, report, has_front=has_front, is_comparable=pareto.score != "gradient")
    return figure


def _draw_interval(axes: Any, y: float, interval: Interval | None, arm: str) -> None:
    if interval is None:
        return
    if interval.low is not None and interval.high is not None:
        ends = [100 * interval.low, 100 * interval.high]
        axes.plot(ends, [y, y], color=COLORS[arm], linewidth=2, solid_capstyle="butt")
    _point(axes, 100 * interval.estimate, y, arm, is_measured=True)


def _draw_cer(axes: Any, arm: ArmReport, reference: float) -> None:
    found = arm.overall.cer_increase
    if found is not None and found.low is not None and found.high is not None:
        ends = [100 * (reference + found.low), 100 * (reference + found.high)]
        axes.plot([arm.bits_per_weight] * 2, ends, color=COLORS[arm.name], linewidth=2, solid_capstyle="butt")
    _point(axes, arm.bits_per_weight, 100 * arm.overall.cer, arm.name, is_measured=True)


def _point(axes: Any, x: float, y: float, arm: str, *, is_measured: bool) -> None:
    face = COLORS[arm] if is_measured else SURFACE
    edge = SURFACE if is_measured else COLORS[arm]
    axes.plot(
        x,
        y,
        marker=MARKERS[arm],
        markersize=7 if is_measured else 6.5,
        markerfacecolor=face,
        markeredgecolor=edge,
        markeredgewidth=0.8 if is_measured else 1.4,
        linestyle="none",
        zorder=3,
    )


def _mark(axes: Any, arm: str) -> Any:
    """An entry of a legend."""
    (line,) = axes.plot(
        [], [], marker=MARKERS[arm], color=COLORS[arm], linestyle="none", markersize=6, label=ARM_NAMES[arm]
    )
    return line


def _key(axes: Any, report: Report, *, has_front: bool, is_comparable: bool) -> None:
    handles = [_mark(axes, arm.name) for arm in report.arms]
    if has_front:
        handles += axes.plot([], [], color=MUTED, linewidth=1.3, label="best predicted")
    if is_comparable:
        handles += axes.plot(
            [],
            [],
            marker="o",
            color=SURFACE,
            markeredgecolor=MUTED,
            linestyle="none",
            label="hollow: predicted",
        )
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.13),
        ncols=3,
        handletextpad=0.4,
        columnspacing=1.4,
        borderaxespad=0,
    )
    axes.tick_params(labelbottom=False)
    axes.yaxis.grid(color=GRID)
