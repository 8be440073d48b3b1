"""Pictures of what a search offers: the front of plans, and the pages behind one score.

Knows Pareto fronts and scores by page. Needs no evaluation.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from ocrquant.artifacts import Assignment, PageScores, Pareto
from ocrquant.assign.hand_maps import HAND_MAPS
from ocrquant.evaluate.theme import COLORS, HEAT, MUTED, SURFACE, new_figure, picture, quiet_axes
from ocrquant.evaluate.words import ARM_NAMES, PRECISION_NAMES, number
from ocrquant.formats import Precision

__all__ = ["LOSS_LABELS", "MARKERS", "draw_front", "named_points", "pages_behind", "pareto_front"]

LOSS_LABELS = {
    "kl": "KL divergence from bf16, nats a token",
    "loss": "mean absolute change of the loss",
    "gradient": "KL estimated from gradients, nats a token",
    "screened": "KL divergence from bf16, nats a token",
}
MARKERS = {"bf16": "s", "fp8": "o", "nvfp4": "^", "plan": "D"}
_HAND_MARKERS = dict(zip(HAND_MAPS, "PXv*ph", strict=False))
_UNKNOWN_MARKER = "d"
_WIDTH = 7.6
_BAR = 0.24
_NUM_PAGES = 12
_LEAST_SHARE = 0.1


@picture
def pareto_front(pareto: Pareto, assignment: Assignment) -> Figure:
    """The best predicted loss at each size, with the plan, the uniform plans and those by hand.

    A plan of no predicted loss, such as bf16, has no place on the logarithmic axis.

    Args:
        pareto: The front and the plans beside it.
        assignment: The plan.
    """
    figure, axes = new_figure(_WIDTH, 3.6)
    draw_front(axes, pareto)
    for name, size, loss in named_points(pareto, assignment):
        _draw_plan(axes, size, loss, name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.set_title(LOSS_LABELS[pareto.score], pad=8)
    axes.set_xlabel("bits per weight of the searched layers")
    axes.set_xlim(4, 16.6)
    axes.xaxis.set_major_locator(MultipleLocator(2))
    quiet_axes(axes, grid="both")
    axes.legend(loc="upper right", handletextpad=0.4, labelspacing=0.35)
    return figure


@picture
def pages_behind(scores: PageScores, group: str, precision: Precision | str) -> Figure:
    """The pages that make up most of one score, as shares of it, with their mean over tokens.

    Args:
        scores: Scores by page.
        group: Name of the group.
        precision: The format.
    """
    frame = scores.to_frame(group, precision)
    shown = frame.head(_NUM_PAGES)
    rest = float(frame["share"].iloc[len(shown) :].sum())
    figure, axes = new_figure(_WIDTH, 0.75 + _BAR * (len(shown) + 1))
    for row, page in enumerate(shown.itertuples()):
        axes.barh(row, page.share, height=0.72, color=HEAT, alpha=0.85, linewidth=0)
        label = f"{page.share:.0%}".replace("%", "\u202f%") + f"   {number(page.per_token)}"
        axes.text(max(page.share, 0) + 0.01, row, label, color=MUTED, fontsize=8, va="center")
    names = [_shortened(name) for name in shown["page"]]
    if len(frame) > len(shown):
        axes.barh(len(shown), rest, height=0.72, color=MUTED, alpha=0.4, linewidth=0)
        names.append(f"{len(frame) - len(shown)} other pages")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(right=max(float(shown["share"].max()), rest, _LEAST_SHARE) * 1.35)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_title(
        f"{group} in {PRECISION_NAMES[Precision(precision)]}: share of the score by page, and mean a token"
    )
    quiet_axes(axes, grid="x")
    return figure


def draw_front(axes: Any, pareto: Pareto) -> bool:
    """Draws the line of best plans; False where none of them is predicted to lose anything."""
    points = [(p.bits_per_weight, p.predicted_loss) for p in pareto.front if p.predicted_loss > 0]
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=MUTED, linewidth=1.3, zorder=1, label="best predicted")
    return bool(points)


def named_points(pareto: Pareto, assignment: Assignment) -> list[tuple[str, float, float]]:
    """Name, bits per weight and predicted loss of the plans that the front is compared with.

    The plan comes last, so that it is drawn above the others; plans without any predicted loss are left out.
    """
    others = [*pareto.hand, *pareto.uniform]
    found = [(point.name, point.bits_per_weight, point.predicted_loss) for point in others]
    found.append(("plan", assignment.bits_per_weight, assignment.predicted_loss))
    return [point for point in found if point[2] > 0]


def _draw_plan(axes: Any, x: float, y: float, name: str) -> None:
    """One named plan: full where it is the one that was chosen, else hollow."""
    color, is_plan = COLORS.get(name, MUTED), name == "plan"
    axes.plot(
        x,
        y,
        marker=MARKERS.get(name) or _HAND_MARKERS.get(name, _UNKNOWN_MARKER),
        markersize=7,
        markerfacecolor=color if is_plan else SURFACE,
        markeredgecolor=SURFACE if is_plan else color,
        markeredgewidth=0.8 if is_plan else 1.4,
        linestyle="none",
        zorder=3,
        label=ARM_NAMES.get(name, name),
    )


def _shortened(name: str, length: int = 44) -> str:
    return name if len(name) <= length else f"…{name[1 - length :]}"
