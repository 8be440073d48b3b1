"""The part of a decode step that a plan decides: its linears, and reading keys and values.

Norms, recurrent states, attention arithmetic, sampling and the host take the same time under every plan and
are left out. Knows shapes and formats; does not know where times come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from ocrquant.formats import FORMATS, Precision

__all__ = ["Load", "StepCost", "Timing", "kv_bytes", "products"]

_NANOSECONDS = 1000
_BITS = 8


class Timing(Protocol):
    """Times of one machine: `Target` computes them, `CostTable` has measured them."""

    @property
    def source(self) -> str:
        """Where a time comes from, in words."""
        ...

    def product_us(self, out_features: int, in_features: int, precision: Precision, rows: int) -> float:
        """Microseconds of `rows` rows times a weight [out, in]."""
        ...

    def read_us(self, num_bytes: int) -> float:
        """Microseconds to read so many bytes."""
        ...

    def note(self, precision: Precision) -> str:
        """What is to be known of a format on that machine; empty where there is nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the machine does at once.

    Attributes:
        batch: Requests that are decoded together.
        window: Rows of each request in a step: 1, or the tokens that a speculative step verifies.
        context: Tokens of each request whose keys and values a step reads.
    """

    batch: int = 1
    window: int = 1
    context: int = 0

    @property
    def rows(self) -> int:
        """Rows of every product."""
        return self.batch * self.window


@dataclass(frozen=True, slots=True)
class StepCost:
    """What parts of a step cost, in whole nanoseconds, rounded up.

    Attributes:
        timing: The machine.
        load: What it does at once.
    """

    timing: Timing
    load: Load

    def group_ns(self, shapes: Sequence[tuple[int, int]], precision: Precision) -> int:
        """Time of a group of linears in one format.

        Args:
            shapes: ``[out_features, in_features]`` of each linear.
            precision: Their format.
        """
        times = (
            self.timing.product_us(rows, columns, precision, self.load.rows)
            for rows, columns in products(shapes)
        )
        return ceil(sum(times) * _NANOSECONDS)

    def kv_ns(self, elements_per_token: int, precision: Precision) -> int:
        """Time to read the keys and values of all requests once.

        Args:
            elements_per_token: Elements of keys and values of all attention layers for one token.
            precision: Format of the cache; one scale a layer is not counted.
        """
        return ceil(
            self.timing.read_us(kv_bytes(elements_per_token, self.load.batch * self.load.context, precision))
            * _NANOSECONDS
        )

    @property
    def words(self) -> str:
        """Load and source, for a reader."""
        load = self.load
        return (
            f"{load.batch} requests, {load.window} rows each, context of {load.context} tokens, "
            f"{self.timing.source}"
        )


def kv_bytes(elements_per_token: int, num_tokens: int, precision: Precision) -> int:
    """Bytes of keys and values.

    Args:
        elements_per_token: Elements of keys and values of all attention layers for one token.
        num_tokens: Tokens of all requests.
        precision: Format of the cache.
    """
    return elements_per_token * num_tokens * FORMATS[precision].element_bits // _BITS


def products(shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The matrix products that a server runs for linears of one group.

    Linears of the same width read the same rows and are multiplied as one weight, as vLLM, SGLang and the
    package's own runtime do for q/k/v, gate/up and the projections of Gated DeltaNet.

    Args:
        shapes: ``[out_features, in_features]`` of each linear.

    Returns:
        ``[out_features, in_features]`` of each product, in the order of its first linear.
    """
    outputs: dict[int, int] = {}
    for rows, columns in shapes:
        outputs[columns] = outputs.get(columns, 0) + rows
    return [(rows, columns) for columns, rows in outputs.items()]
