"""The verdict on equivalence in words: a title, a sentence, what a reader must know, and its table.

Knows outcomes and units. Does not know how they were measured.
"""

from __future__ import annotations

from ocrquant.artifacts import BrokenOutput, Equivalence, Interval, MarginTest, Report, RiseTest
from ocrquant.evaluate.table import Table
from ocrquant.evaluate.words import (
    ARM_NAMES,
    KIND_NAMES,
    NOTHING,
    count,
    interval_range,
    nats,
    points,
    points_interval,
)
from ocrquant.metrics.equivalence import MIN_CLUSTERS, unseen_share

__all__ = [
    "EQUIVALENCE_LEAD",
    "broken_outputs_table",
    "equivalence_notes",
    "equivalence_sentence",
    "equivalence_table",
    "equivalence_title",
]

EQUIVALENCE_LEAD = (
    "Two one-sided tests on the paired differences of documents: equal within the margin where the whole "
    "interval is. The outer ends of a bootstrap and of Student's t, plain and freed from skewness, count. "
    "Every kind of page must pass by itself; claims of worse together keep one level (Holm). CER is that of "
    "free-running output, KL follows the truth."
)

_EVENTS: dict[BrokenOutput, str] = {
    "loop": "end in a loop",
    "cut_off": "are cut off at the token limit",
    "empty": "are empty",
}
_EVENT_NAMES: dict[BrokenOutput, str] = {"loop": "loops", "cut_off": "cut off", "empty": "empty"}
_METRIC_NAMES = {"cer": "CER", "kl": "KL"}
_OUTCOMES = {"equivalent": "holds", "better": "holds, better", "worse": "worse", "unsettled": "too few pages"}


def equivalence_title(found: Equivalence) -> str:
    """The verdict in a few words."""
    if found.outcome == "worse":
        return "Worse than bf16"
    if found.outcome == "unsettled":
        return "Not enough pages for a verdict"
    return f"{'Equivalent' if found.outcome == 'equivalent' else 'No worse'} within {_margins(found)}"


def equivalence_sentence(found: Equivalence) -> str:
    """Why, with the kind of page that decides; without the title."""
    if found.outcome == "worse":
        return _why_worse(found)
    if found.outcome == "unsettled":
        return _why_unsettled(found)
    worst = max(found.margins, key=lambda test: test.badness)
    kinds = "each kind of page" if len({test.kind for test in found.margins}) > 1 else "these pages"
    return f"On {kinds} the change stays within the margin; nearest to it: {_measured(worst, found)}."


def equivalence_notes(found: Equivalence | None) -> list[str]:
    """What a verdict of equivalence cannot know."""
    if found is None or not found.is_passed:
        return []
    fewest = min(found.margins, key=lambda test: test.num_documents)
    share = unseen_share(fewest.num_documents, 1.0 - found.confidence)
    return [
        f"A failure that strikes fewer than one in {max(1, round(1 / share))} documents may have struck none "
        f"of the {fewest.num_documents} with {KIND_NAMES[fewest.kind]}: the verdict does not speak of it."
    ]


def equivalence_table(found: Equivalence, report: Report) -> Table:
    """One row a kind of page and margin, then one for each kind of broken output that changed."""
    rows = []
    for margin in found.margins:
        rows.append(
            (
                _metric_name(margin, report),
                KIND_NAMES[margin.kind],
                _base(margin),
                _value(margin),
                _limit(margin),
                _outcome(margin),
            )
        )
    for rise in found.rises:
        if rise.num_more or rise.num_fewer:
            changed = f"more in {rise.num_more}, fewer in {rise.num_fewer}; p = {rise.p_value:.2g}"
            name = _EVENT_NAMES[rise.event].capitalize()
            result = "no rise" if rise.outcome == "equivalent" else _outcome(rise)
            rows.append((name, KIND_NAMES[rise.kind], _base(rise), changed, "chance", result))
    header = ("Plan less bf16", "On", "From", f"Measured ({_confidence(found)})", "Margin", "Result")
    return Table(header, tuple(rows), 3)


def broken_outputs_table(report: Report) -> Table:
    """Outputs that no average shows, of each arm on each kind of page, with their paired differences."""
    rows: list[tuple[str, ...]] = []
    strong, groups = set(), set()
    for kind in report.arms[0].by_kind:
        groups.add(len(rows))
        for arm in report.arms:
            metrics = arm.by_kind[kind]
            if arm.name == "plan":
                strong.add(len(rows))
            name = f"{KIND_NAMES[kind].capitalize()} ({metrics.num_pages})" if len(rows) in groups else ""
            cells: list[str] = []
            for number, change in (
                (metrics.num_repetition_loops, metrics.loop_increase),
                (metrics.num_unfinished, metrics.unfinished_increase),
                (metrics.num_empty, metrics.empty_increase),
            ):
                cells += [str(number), _share_change(change)]
            rows.append((name, ARM_NAMES[arm.name], *cells))
    columns = [f"Δ {what}, points of pages (95 %)" for what in ("loops", "cut off", "empty")]
    header = ("Pages", "", "Loops", columns[0], "Cut off", columns[1], "Empty", columns[2])
    return Table(header, tuple(rows), 2, frozenset(strong), frozenset(groups))


def _why_worse(found: Equivalence) -> str:
    if found.num_nonfinite:
        return f"Logits are NaN or infinite on {count(found.num_nonfinite, 'page')}."
    reasons = []
    margins = [test for test in found.margins if test.outcome == "worse"]
    if margins:
        worst = max(margins, key=lambda test: test.badness)
        limit = "beyond" if worst.low is not None and worst.low > worst.margin else "not shown to stay within"
        reasons.append(f"The loss is more than chance and {limit} the margin: {_measured(worst, found)}")
    for rise in found.rises:
        if rise.outcome == "worse":
            reasons.append(f"{_rise(rise)} (p = {rise.p_value:.2g})")
    return ". ".join(reasons) + "."


def _why_unsettled(found: Equivalence) -> str:
    if not found.margins:
        return "No page has a truth with characters in it."
    few = [test for test in found.margins if test.num_documents < MIN_CLUSTERS]
    if few:
        fewest = min(few, key=lambda test: test.num_documents)
        return (
            f"{KIND_NAMES[fewest.kind].capitalize()} come from "
            f"{count(fewest.num_documents, 'document')}, and below {MIN_CLUSTERS} nothing is concluded: "
            f"at least {_more_pages(found)} needed."
        )
    tests = [test for test in found.tests if test.outcome == "unsettled"]
    hardest = max(tests, key=_share_needed)
    if isinstance(hardest, RiseTest):
        what = f"{_rise(hardest)}, which may be chance"
    else:
        what = f"The interval reaches across the margin: {_measured(hardest, found)}"
    if found.num_more_pages is None:
        return f"{what}. At the difference seen no number of pages would settle it."
    return f"{what}. If the difference stays as it is, about {_more_pages(found)} needed."


def _more_pages(found: Equivalence) -> str:
    """How many pages of the same mix, and how many documents of the kind that needs most."""
    tests = [test for test in found.tests if test.outcome == "unsettled"]
    hardest = max(tests, key=_share_needed)
    pages = count(found.num_more_pages or 0, "more page")
    documents = count(hardest.num_more_documents or 0, "more document")
    verb = "is" if found.num_more_pages == 1 else "are"
    return f"{pages} of the same mix ({documents} with {KIND_NAMES[hardest.kind]}) {verb}"


def _share_needed(test: MarginTest | RiseTest) -> float:
    """Further documents over those there are."""
    more = test.num_more_documents
    return float("inf") if more is None else more / test.num_documents


def _rise(rise: RiseTest) -> str:
    return (
        f"More {KIND_NAMES[rise.kind]} {_EVENTS[rise.event]} than in bf16, "
        f"in {count(rise.num_more, 'document')} against {rise.num_fewer}"
    )


def _measured(test: MarginTest, found: Equivalence) -> str:
    """``+0.31 points of CER on blocks (90 % interval 0.05 to 1.06), margin 0.50``."""
    unit = "points of CER" if test.metric == "cer" else "nats of KL a token"
    value = points(test.estimate) if test.metric == "cer" else nats(test.estimate)
    if test.low is None:
        ends = "no interval from one document"
    else:
        ends = f"{_confidence(found)} interval {interval_range(_interval(test), **_scale(test))}"
    return f"{value} {unit} on {KIND_NAMES[test.kind]} ({ends}), margin {_limit(test)}"


def _value(test: MarginTest) -> str:
    if test.metric == "cer":
        return points_interval(_interval(test))
    if test.low is None:
        return nats(test.estimate)
    return f"{nats(test.estimate)} ({interval_range(_interval(test), **_scale(test))})"


def _interval(test: MarginTest) -> Interval:
    return Interval(estimate=test.estimate, low=test.low, high=test.high)


def _scale(test: MarginTest) -> dict[str, int]:
    return {"factor": 100} if test.metric == "cer" else {"decimals": 4}


def _limit(test: MarginTest) -> str:
    return f"{100 * test.margin:.2f}" if test.metric == "cer" else f"{test.margin:g}"


def _margins(found: Equivalence) -> str:
    limits = {test.metric: _limit(test) for test in found.margins}
    units = {"cer": "points of CER", "kl": "nats of KL"}
    return " and ".join(f"{limit} {units[metric]}" for metric, limit in limits.items())


def _confidence(found: Equivalence) -> str:
    return f"{100 * (2 * found.confidence - 1):.3g}\u202f%"


def _metric_name(test: MarginTest, report: Report) -> str:
    name = _METRIC_NAMES[test.metric]
    if test.metric == "kl":
        return f"{name}, nats a token"
    return f"{name}{' to bf16' if report.is_judged_by_model else ''}, points"


def _base(test: MarginTest | RiseTest) -> str:
    return f"{count(test.num_pages, 'page')}, {count(test.num_documents, 'document')}"


def _outcome(test: MarginTest | RiseTest) -> str:
    result = _OUTCOMES[test.outcome]
    if test.num_more_documents is None:
        return result
    least = "at least" if test.num_documents == 1 else "about"
    return f"{result}, {least} {count(test.num_more_documents, 'document')} more"


def _share_change(change: Interval | None) -> str:
    return NOTHING if change is None else points_interval(change)
