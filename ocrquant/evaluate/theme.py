"""Colours, type and the way from a matplotlib figure to SVG inside a page that may be light or dark.

Knows colours and SVG text. Knows no artefact. The precisions take grey and the blue and vermilion of Okabe
and Ito ("Color Universal Design", 2008), which stay apart under every kind of colour blindness; where it
matters, shape or text tells them apart too.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = [
    "COLORS",
    "GRID",
    "HEAT",
    "INK",
    "MUTED",
    "SURFACE",
    "new_figure",
    "picture",
    "quiet_axes",
    "to_png",
    "to_svg",
]

INK, MUTED, GRID, SURFACE, HEAT = "#1b2330", "#5c6878", "#dfe4ea", "#fefefe", "#6b3fa0"
COLORS = {"bf16": "#6f7b8c", "fp8": "#0072b2", "nvfp4": "#d55e00", "plan": "#00805c"}

# The colour of a figure -> the property of the page that takes its place.
_PROPERTIES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    SURFACE: "--surface",
    HEAT: "--heat",
    **{color: f"--{name}" for name, color in COLORS.items()},
}

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "figure.facecolor": SURFACE,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": 8.5,
}

Parameters = ParamSpec("Parameters")


def picture(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Decorates a function that draws a figure so that it draws in the style of the report."""

    @wraps(draw)
    def styled(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Figure:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


class Picture(Figure):
    """A figure that shows itself in Jupyter; it belongs to no window, so nothing has to be closed."""

    def _repr_png_(self) -> bytes:
        return to_png(self)


def new_figure(width: float, height: float, **subplots: Any) -> tuple[Figure, Any]:
    """An empty figure.

    Args:
        width: In inches.
        height: In inches.
        **subplots: As for `Figure.subplots`.

    Returns:
        The figure and its axes, as `Figure.subplots` gives them.
    """
    figure = Picture(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**subplots)


def to_png(figure: Figure, *, dpi: int = 144) -> bytes:
    """The figure as a PNG file.

    Args:
        figure: The figure.
        dpi: Dots an inch.
    """
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def quiet_axes(axes: Any, *, grid: str | None) -> None:
    """Takes away frame and ticks of one axes and draws a light grid across ``x``, ``y`` or neither axis."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(which="both", length=0)
    if grid is not None:
        axes.grid(axis=grid)


def to_svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an ``<svg>`` element for a page of HTML, the same text every time.

    Colours of the theme become CSS properties (``var(--ink)`` and so on), text stays text in the page's own
    type, every id begins with `name`, and nothing in it refers to the outside.

    Args:
        figure: The figure; its background is left out.
        name: Begins every id; each figure of a page needs its own.
        title: What a screen reader says in its place.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    head = f'<svg class="picture" viewBox="\\1" role="img" aria-label="{html.escape(title)}">'
    text = re.sub(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>', head, text, count=1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", text)
    for color, property_name in _PROPERTIES.items():
        text = text.replace(color, f"var({property_name})")
    return re.sub(r"\n\s*", "\n", text).strip()
