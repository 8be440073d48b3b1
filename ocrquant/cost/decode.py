"""A decode step of a whole model on a machine by its limits: what each part reads, computes and takes.

Parts run one after another; each takes the longer of reading and computing, and every kernel its start.
``tokens/s of a request = tokens of a step / (draft + target)``. Left out, for both sides of every
comparison: norms and other elementwise work, activations (they stay in the second-level cache), arithmetic of
the recurrence, the host. So times are lower bounds. Knows shapes and limits; measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ocrquant.cost.acceptance import Acceptance, replay_traffic
from ocrquant.cost.shapes import DrafterShape, ModelShape, Plan
from ocrquant.cost.step import Load, kv_bytes
from ocrquant.cost.target import Target
from ocrquant.formats import Precision

__all__ = ["Decoding", "Estimate", "StateKind", "Term", "estimate"]

StateKind = Literal["native", "replay"]
"""``native`` writes a state for every row of a window, ``replay`` one record a row and a state at a fold."""

_MS = 1000.0
_LOGIT_BYTES = 4
_HISTORY_WINDOWS = 4
"""Windows that a history of ReplaySSM holds: it folds in a third of the steps with 12 of 16 kept."""
_BF16_BYTES, _FP32_BYTES = 2, 4


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a step.

    Attributes:
        name: ``weights`` are products that wait for their weights, ``compute`` those that wait for
            arithmetic; ``state``, ``records``, ``kv``, ``logits``, ``launches``; ``draft`` is all of the
            drafter, its own starts included.
        num_bytes: Memory that it moves.
        flop: Operations.
        us: Time.
    """

    name: str
    num_bytes: float
    flop: float
    us: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """One step.

    Attributes:
        terms: Its parts.
        tokens: Tokens that it emits for each request.
        batch: Requests.
        block: Rows of a window; 1 without drafts.
        launches: Kernels that are started.
        flush_rate: Share of steps with a fold of ReplaySSM's records; None where there are none.
    """

    terms: tuple[Term, ...]
    tokens: float
    batch: int
    block: int
    launches: int
    flush_rate: float | None

    @property
    def num_bytes(self) -> float:
        """Memory that the step moves."""
        return sum(term.num_bytes for term in self.terms)

    @property
    def flop(self) -> float:
        """Operations."""
        return sum(term.flop for term in self.terms)

    @property
    def ms(self) -> float:
        """Its time."""
        return sum(term.us for term in self.terms) / _MS

    @property
    def tokens_per_s(self) -> float:
        """Tokens of one request in a second."""
        return self.tokens / self.ms * _MS

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        return max(self.terms, key=lambda term: term.us).name

    def us(self, *names: str) -> float:
        """Time of some parts."""
        return sum(term.us for term in self.terms if term.name in names)

    def bytes_of(self, *names: str) -> float:
        """Memory that some parts move."""
        return sum(term.num_bytes for term in self.terms if term.name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a model is served.

    Attributes:
        model: Its sizes.
        plan: Precision of its parts.
        captured: Whether a step is replayed from a captured program.
        state: How recurrent states are kept where drafts may be undone.
        acceptance: Of the drafts; None decodes one token a step.
        drafter: Its sizes; None where nothing but the target is counted.
        history: Records of a slot for ReplaySSM; None for four windows.
        record: Precision of records: float32 where it is None, as the package's own pool keeps them.
        kv: Precision of keys and values.
    """

    model: ModelShape
    plan: Plan
    captured: bool = True
    state: StateKind = "native"
    acceptance: Acceptance | None = None
    drafter: DrafterShape | None = None
    history: int | None = None
    record: Precision | None = None
    kv: Precision = Precision.BF16


def estimate(decoding: Decoding, target: Target, load: Load) -> Estimate:
    """One step of `load.batch` requests with windows of `load.window` rows.

    Args:
        decoding: What is served, and how.
        target: The machine.
        load: Requests, rows of each, and tokens of context that attention reads.
    """
    start_us = target.replay_us if decoding.captured else target.launch_us
    is_replay = decoding.acceptance is not None and decoding.state == "replay"
    launches = decoding.model.launches(replay=is_replay)
    states, flush_rate = _state_terms(decoding, target, load)
    terms = [*_product_terms(decoding, target, load), *states, _kv_term(decoding, target, load)]
    logits = 2.0 * load.rows * decoding.model.vocab * _LOGIT_BYTES
    terms.append(_moved("logits", logits, target))
    terms.append(Term("launches", 0.0, 0.0, launches * start_us))
    if decoding.drafter is not None and decoding.acceptance is not None:
        terms.append(_draft_term(decoding, decoding.drafter, target, load, start_us))
        launches += decoding.drafter.launches
    tokens = 1.0 if decoding.acceptance is None else decoding.acceptance.tokens(load.window)
    return Estimate(tuple(terms), tokens, load.batch, load.window, launches, flush_rate)


def _moved(name: str, num_bytes: float, target: Target) -> Term:
    return Term(name, num_bytes, 0.0, target.read_us(round(num_bytes)))


def _product_terms(decoding: Decoding, target: Target, load: Load) -> list[Term]:
    """All products: those that wait for weights, and those that wait for arithmetic."""
    totals = {"weights": [0.0, 0.0, 0.0], "compute": [0.0, 0.0, 0.0]}
    for product in decoding.model.products:
        precision = decoding.plan[product.part]
        sizes = (product.out_features, product.in_features)
        reading, computing = target.limits_us(*sizes, precision, load.rows)
        found = totals["weights" if reading >= computing else "compute"]
        found[0] += product.num_bytes(precision)
        found[1] += 2.0 * product.num_weights * load.rows
        found[2] += product.count * max(reading, computing)
    conv = decoding.model.conv_bytes
    totals["weights"][0] += conv
    totals["weights"][2] += target.read_us(conv)
    return [Term(name, *values) for name, values in totals.items()]


def _state_terms(decoding: Decoding, target: Target, load: Load) -> tuple[list[Term], float | None]:
    """Recurrent states: read once, written once a row (native), or at folds with records in between."""
    state = float(decoding.model.state_bytes * load.batch)
    if decoding.acceptance is None or decoding.state == "native":
        return [_moved("state", state * (1 + load.window), target)], None
    history = decoding.history or _HISTORY_WINDOWS * load.window
    traffic = replay_traffic(decoding.acceptance.emitted(load.window), history)
    element = _FP32_BYTES if decoding.record is None else _BF16_BYTES
    record = decoding.model.record_bytes(element) * load.batch
    moved = (load.window + traffic.live_records) * record
    terms = [_moved("state", state * (1 + traffic.flush_rate), target), _moved("records", moved, target)]
    return terms, traffic.flush_rate


def _kv_term(decoding: Decoding, target: Target, load: Load) -> Term:
    num_bytes = kv_bytes(decoding.model.kv_elements, load.batch * load.context, decoding.kv)
    flop = decoding.model.attention_flop(load.rows, load.context)
    us = max(target.read_us(num_bytes), target.compute_us(flop, Precision.BF16))
    return Term("kv", num_bytes, flop, us)


def _draft_term(
    decoding: Decoding, drafter: DrafterShape, target: Target, load: Load, start_us: float
) -> Term:
    """The drafter in bf16: its layers on a block, features of as many rows, its cache, the target's head."""
    head = next(product for product in decoding.model.products if product.part == "head")
    drafts = load.batch * (load.window - 1)
    precision = decoding.plan["head"]
    block, context = drafter.block_weights, drafter.context_weights
    own_bytes = float(_BF16_BYTES * (block + context))
    own_flop = 2.0 * load.rows * (block + context + drafter.kv_weights)
    cache = float(_BF16_BYTES * load.batch * drafter.kv_elements(load.context))
    parts: Sequence[tuple[float, float, Precision]] = (
        (own_bytes, own_flop, Precision.BF16),
        (float(head.num_bytes(precision)), 2.0 * head.num_weights * drafts, precision),
        (cache, 0.0, Precision.BF16),
        (2.0 * drafts * decoding.model.vocab * _LOGIT_BYTES, 0.0, Precision.BF16),
    )
    us = sum(max(target.read_us(round(size)), target.compute_us(flop, kind)) for size, flop, kind in parts)
    return Term(
        "draft",
        sum(size for size, _, _ in parts),
        sum(flop for _, flop, _ in parts),
        us + drafter.launches * start_us,
    )
