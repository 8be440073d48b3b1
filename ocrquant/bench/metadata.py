"""Host time of a step's metadata, as the engine builds it and as it is built for groups of layers.

The case is the published one of 24 Gated DeltaNet, 8 attention, 5 sliding and 1 full draft layers: 38 groups.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ocrquant.bench.metadata_groups import FOUR_LAYOUTS, group_size, host_times, num_groups
from ocrquant.bench.report import BenchSettings, Report

__all__ = ["Settings", "run"]

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """Steps to build.

    Attributes:
        requests: Numbers of requests in a step.
        layers: Layers by kind, the recurrent ones first.
    """

    requests: tuple[Positive, ...] = (1, 8, 32)
    layers: tuple[Positive, ...] = FOUR_LAYOUTS


def run(settings: Settings, repeats: int) -> Report:
    """Measures both ways at each number of requests."""
    report = Report("metadata", settings, repeats)
    report.results["groups"] = num_groups(settings.layers, group_size(settings.layers))
    for count in settings.requests:
        times = host_times(count, settings.layers, repeats=repeats)
        report.results[f"{count} requests"] = {
            "three_objects_us": times.ours_us,
            "by_group_us": times.grouped_us,
            "times_longer": times.times,
        }
    report.notes = [
        "steps of single rows, in which every request goes on by a token; both write on the host and copy to "
        "a device buffer",
        "no ceiling: the work is interpreter time and does not depend on memory",
    ]
    return report
