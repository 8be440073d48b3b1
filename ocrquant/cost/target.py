"""Machines by their stated limits, and the roofline that follows from them.

A product takes the longer of reading its weights at the memory bandwidth and computing at the peak of the
format that it computes in, plus one launch (Williams, Waterman and Patterson, "Roofline", 2009). Real kernels
are slower: a measured table is the better source wherever the machine is at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ocrquant.formats import FORMATS, Precision

__all__ = ["TARGETS", "Target"]

_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One machine.

    Attributes:
        name: Its name in a recipe.
        bytes_per_s: Memory bandwidth.
        flop_per_s: Dense peak by the format of the arithmetic. Weights of a format that is not listed are
            decoded and multiplied in bf16: they save bytes and no arithmetic.
        launch_us: What starting one product costs.
        replay_us: What starting one kernel costs inside a program that was captured before.
        stated_by: Where the numbers come from.
    """

    name: str
    bytes_per_s: float
    flop_per_s: Mapping[Precision, float]
    launch_us: float
    replay_us: float
    stated_by: str

    @property
    def source(self) -> str:
        """Where a time comes from, in words."""
        return f"roofline of {self.name} ({self.stated_by})"

    def product_us(self, out_features: int, in_features: int, precision: Precision, rows: int) -> float:
        """Time of one product in microseconds.

        Args:
            out_features: Rows of the weight.
            in_features: Columns of the weight.
            precision: Its format.
            rows: Rows that are multiplied by it.
        """
        return max(self.limits_us(out_features, in_features, precision, rows)) + self.launch_us

    def limits_us(
        self, out_features: int, in_features: int, precision: Precision, rows: int
    ) -> tuple[float, float]:
        """The two limits of a product in microseconds: reading its weight, and computing.

        Args:
            out_features: Rows of the weight.
            in_features: Columns of the weight.
            precision: Its format.
            rows: Rows that are multiplied by it.
        """
        reading = self.read_us(FORMATS[precision].weight_bytes(out_features, in_features))
        return reading, self.compute_us(2.0 * out_features * in_features * rows, precision)

    def compute_us(self, flop: float, precision: Precision) -> float:
        """Time of so many operations at the peak of a format in microseconds."""
        return flop / self._peak(precision) * _MICROSECONDS

    def read_us(self, num_bytes: int) -> float:
        """Time to read so many bytes in microseconds."""
        return num_bytes / self.bytes_per_s * _MICROSECONDS

    def note(self, precision: Precision) -> str:
        """What is to be known of a format there; empty where it runs as it is."""
        if precision in self.flop_per_s:
            return ""
        return f"{self.name} has no {precision} arithmetic: weights are decoded there and multiplied in bf16"

    def _peak(self, precision: Precision) -> float:
        return self.flop_per_s.get(precision, self.flop_per_s[Precision.BF16])


_GPU_LAUNCH_US = 2.5
"""290 launches cost 0.6 to 0.9 ms of a step on a B200 that is served without graphs."""

_GPU_REPLAY_US = 1.0
"""Assumed: about one microsecond from one kernel of a captured graph to the next that waits for it."""

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            Target(
                name="b200",
                bytes_per_s=8.0e12,
                flop_per_s={Precision.BF16: 2.25e15, Precision.FP8: 4.5e15, Precision.NVFP4: 9.0e15},
                launch_us=_GPU_LAUNCH_US,
                replay_us=_GPU_REPLAY_US,
                stated_by="NVIDIA HGX B200 data sheet, dense peaks, 8 TB/s",
            ),
            Target(
                name="h200",
                bytes_per_s=4.8e12,
                flop_per_s={Precision.BF16: 989e12, Precision.FP8: 1979e12},
                launch_us=_GPU_LAUNCH_US,
                replay_us=_GPU_REPLAY_US,
                stated_by="NVIDIA H200 data sheet (SXM), half of its peaks with sparsity, 4.8 TB/s",
            ),
            Target(
                name="rtx-pro-6000",
                bytes_per_s=1.792e12,
                flop_per_s={Precision.BF16: 504e12, Precision.FP8: 1008e12, Precision.NVFP4: 2015e12},
                launch_us=_GPU_LAUNCH_US,
                replay_us=_GPU_REPLAY_US,
                stated_by="NVIDIA RTX PRO 6000 Blackwell, 4 PFLOPS of sparse FP4 by its data sheet and what "
                "follows from it, 1792 GB/s",
            ),
            Target(
                name="cpu",
                bytes_per_s=13.9e9,
                flop_per_s={Precision.BF16: 55e9, Precision.FP8: 46e9, Precision.NVFP4: 121e9},
                launch_us=0.5,
                replay_us=0.5,
                stated_by="`ocrquant bench layer`, one thread of an Intel Xeon family 6 model 207, AVX-512, "
                "2026-11-30: read bandwidth, and 8 rows for peaks; a product of 16 x 16 for the launch",
            ),
        )
    }
)
"""Machines by name."""
