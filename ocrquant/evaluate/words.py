"""How numbers, intervals and names are written, the same in text, tables and pictures.

Knows units and rounding. Does not know where a text is shown.
"""

from __future__ import annotations

from ocrquant.artifacts import Interval, Report
from ocrquant.formats import Precision

__all__ = [
    "ARM_NAMES",
    "KIND_NAMES",
    "MINUS",
    "NOTHING",
    "PRECISION_NAMES",
    "STAND_IN",
    "basis",
    "bits",
    "byte_size",
    "change",
    "count",
    "interval_range",
    "nats",
    "number",
    "percent",
    "points",
    "points_interval",
    "signed",
]

MINUS, NOTHING = "\u2212", "\u2013"

ARM_NAMES = {"bf16": "bf16", "fp8": "Uniform FP8", "nvfp4": "Uniform NVFP4", "plan": "Plan"}
KIND_NAMES = {"line": "lines", "block": "blocks", "page": "pages"}
PRECISION_NAMES = {Precision.BF16: "bf16", Precision.FP8: "FP8", Precision.NVFP4: "NVFP4"}

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def number(value: float) -> str:
    """Two significant digits, without an exponent down to a millionth."""
    if value == 0:
        return "0"
    text = f"{value:.2g}"
    return _signed(f"{float(text):.10f}".rstrip("0").rstrip(".") if 1e-6 <= abs(value) < 1e4 else text)


def signed(value: float) -> str:
    """A short number with its sign; zero has none."""
    return _signed(f"{value:+g}") if value else "0"


def percent(rate: float | None) -> str:
    """A fraction as per cent with two decimals."""
    return NOTHING if rate is None else f"{rate:.2%}".replace("%", "\u202f%")


def change(ratio: float) -> str:
    """A relative change as whole per cent, with its sign."""
    text = f"{100 * ratio:+.0f}"
    return f"{'0' if float(text) == 0 else _signed(text)}\u202f%"


def points(difference: float) -> str:
    """A difference of two fractions in percentage points, with its sign."""
    text = f"{100 * difference:+.2f}"
    return "0.00" if float(text) == 0 else _signed(text)


def interval_range(interval: Interval | None, *, factor: float = 1.0, decimals: int = 2) -> str:
    """Both ends of an interval, or a dash where they are unknown.

    Args:
        interval: The interval.
        factor: What its ends are multiplied by: 100 for percentage points.
        decimals: Decimals of each end.
    """
    if interval is None or interval.low is None or interval.high is None:
        return NOTHING
    low, high = (_signed(_zero(f"{factor * end:.{decimals}f}")) for end in (interval.low, interval.high))
    return f"{low} to {high}"


def points_interval(interval: Interval | None) -> str:
    """A difference in percentage points with its interval, such as ``+0.21 (0.10 to 0.52)``."""
    if interval is None:
        return NOTHING
    if interval.low is None:
        return points(interval.estimate)
    return f"{points(interval.estimate)} ({interval_range(interval, factor=100)})"


def nats(value: float | None) -> str:
    """A KL divergence with four decimals."""
    if not value:
        return NOTHING if value is None else "0"
    return _signed(_zero(f"{value:.4f}"))


def bits(value: float) -> str:
    """Bits per weight."""
    return f"{value:.2f}"


def count(value: int, noun: str) -> str:
    """A number of things: ``1 page``, ``2 pages``."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def byte_size(num_bytes: float) -> str:
    """A size in decimal units."""
    for size, unit in _UNITS:
        if num_bytes >= size:
            return (
                f"{num_bytes / size:.3g} {unit}"
                if num_bytes < 1000 * size
                else f"{num_bytes / size:,.0f} {unit}"
            )
    return f"{num_bytes:.0f} B"


def _signed(text: str) -> str:
    return text.replace("-", MINUS) if text.startswith("-") else text


def _zero(text: str) -> str:
    return text.removeprefix("-") if float(text) == 0 else text


STAND_IN = (
    "These pages have no ground truth: bf16's own transcription stands in for it, so error rates count "
    "disagreement with bf16, not mistakes."
)


def basis(report: Report) -> str:
    """What a report rests on, in one line."""
    found = report.arms[0].overall
    kinds = " and ".join(
        count(metrics.num_pages, KIND_NAMES[kind].removesuffix("s"))
        for kind, metrics in report.arms[0].by_kind.items()
    )
    return (
        f"{kinds} of {count(found.num_documents, 'held-out document')}, {found.num_characters:,} characters"
    )
