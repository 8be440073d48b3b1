"""One seed of the contest with ModelOpt: pages, plans of every side, and what they lose on other pages.

Each part is written down when it is finished and not done again. Half of a scoring is thrown away, since its
seconds are part of the result. Knows stages and ModelOpt's search by their functions.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import fsum
from typing import Any, Literal

import torch

from ocrquant.adapters import load_model
from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import Rounding, RunFolder, Sensitivity, write_bytes
from ocrquant.assign import choose_formats
from ocrquant.assign.grid import grid_plans
from ocrquant.bench.contest_setup import FORMATS, SeedContest
from ocrquant.bench.report import plain
from ocrquant.formats import Precision
from ocrquant.recipe.assign_section import Budget
from ocrquant.recipe.sections import SearchSection
from ocrquant.sensitivity import measure_sensitivity
from ocrquant.sensitivity.batches import encode, plan_batches
from ocrquant.sensitivity.judge import PlanJudge
from ocrquant.toolkits.modelopt_search import METHODS, auto_quantize, plan_bits

__all__ = ["OF_JUDGED", "OURS", "OWN", "THEIRS", "JudgedPages", "run_seed"]

OURS = "ocrquant"
THEIRS = ("modelopt gradient", "modelopt kl_div")
OWN = "ocrquant, own weights"
OF_JUDGED = "of the judged pages"
"""The plans of least sum by our scores on the pages that judge: scores without their noise over pages."""

Plan = dict[str, Precision]
PlanOf = dict[str, Plan]
"""Plan by budget."""

JudgedPages = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""Side -> budget -> page by page: KL summed over its answer tokens, and their number."""


def run_seed(contest: SeedContest, say: Callable[[str], None]) -> tuple[dict[str, Any], JudgedPages]:
    """Plans of every side and their KL divergences, and the latter page by page.

    Args:
        contest: The seed.
        say: Told of every part that is finished.
    """
    plans: dict[str, PlanOf] = {}
    seconds: dict[str, float] = {}
    for name, method in zip(THEIRS, METHODS, strict=True):
        found = _kept(contest, name, partial(_modelopt, contest, method))
        plans[name], seconds[name] = _plans(found), found["cpu_seconds"]
        say(f"{name} scored in {found['cpu_seconds']:.1f} s")
    found = _kept(contest, OURS, lambda: _ours(contest, "nearest"), contest.max_measurements)
    plans[OURS] = _plans(found)
    seconds |= {OURS: found["cpu_seconds"], f"{OURS}, swaps": found["swap_seconds"]}
    say(f"{OURS} scored in {found['cpu_seconds']:.1f} s, swaps took {found['swap_seconds']:.1f} s")
    num_pages = contest.num_heldout_pages
    judged = _kept(contest, "judged", lambda: _judged(contest, "judged", plans), num_pages, _texts(plans))
    if contest.own_weights:
        whole = _kept(contest, OWN, lambda: _ours(contest, "own"), contest.max_measurements)
        own = {OWN: _plans(whole)}
        seconds |= {OWN: whole["cpu_seconds"], f"{OWN}, swaps": whole["swap_seconds"]}
        say(f"{OWN} scored in {whole['cpu_seconds']:.1f} s, swaps took {whole['swap_seconds']:.1f} s")
        name = f"judged, {OWN}"
        judged |= _kept(contest, name, lambda: _judged(contest, "own", own), num_pages, _texts(own))
        plans |= own
    sums: dict[str, dict[str, float]] = {}
    if contest.score_judged:
        same_weights = {side: plans[side] for side in (OURS, *THEIRS)}
        best = _kept(
            contest,
            OF_JUDGED,
            lambda: _of_judged(contest, same_weights),
            num_pages,
            _texts(same_weights),
        )
        judged |= {OF_JUDGED: best["judged"]}
        plans[OF_JUDGED], sums = _plans(best), best["sums"]
    document = load_model(contest.model)
    rows = {budget: _row(document, budget, plans, judged, sums) for budget in plans[OURS]}
    return {"plans": rows, "cpu_seconds": seconds, "swaps": found["swaps"]}, judged


def _row(
    document: DocumentModel,
    budget: str,
    plans: Mapping[str, PlanOf],
    judged: Mapping[str, Any],
    sums: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    kl = {name: _mean(judged[name][budget]) for name in judged}
    best = min(kl[name] for name in THEIRS)
    row = {
        "kl": kl,
        "bits": {name: plan_bits(document, plans[name][budget]) for name in plans},
        "ratio": {side: kl[side] / best for side in kl if side not in THEIRS},
        "pages": len(judged[OURS][budget]),
        "tokens": sum(count for _, count in judged[OURS][budget]),
    }
    if sums:
        row["sum"] = {side: found[budget] for side, found in sums.items()}
        row["least_sum_ratio"] = row["sum"][OF_JUDGED] / min(row["sum"][side] for side in THEIRS)
    return row


def _mean(pages: Sequence[Sequence[float]]) -> float:
    return fsum(kl for kl, _ in pages) / sum(int(count) for _, count in pages)


def _kept(contest: SeedContest, name: str, make: Callable[[], dict[str, Any]], *extra: object) -> Any:
    """What a finished part gave, from its file where that was made with the same settings."""
    path = contest.folder / f"{name.replace(', ', '-').replace(' ', '-')}.json"
    digest = contest.digest(*extra)
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["settings"] == digest:
            return stored["result"]
    result = make()
    write_bytes(path, json.dumps({"settings": digest, "result": result}, indent=1).encode())
    gc.collect()
    return json.loads(path.read_text(encoding="utf-8"))["result"]


def _modelopt(contest: SeedContest, method: Literal["gradient", "kl_div"]) -> dict[str, Any]:
    document = load_model(contest.model, dtype=torch.float32)
    batches = plan_batches(document, contest.pages("calibration"), contest.batch_size)
    encoded = [encode(document, batch) for batch in batches]
    found = auto_quantize(document, encoded, FORMATS, contest.bits, method)
    return {
        "plans": _texts_of({f"{budget:g} bits": dict(plan) for budget, plan in found.plans.items()}),
        "scores": plain(found.scores),
        "cpu_seconds": found.cpu_seconds,
    }


def _ours(contest: SeedContest, weights: str) -> dict[str, Any]:
    """Our plans, scored with and for such weights."""
    document, scoring = load_model(contest.model), contest.scoring()
    plans: dict[str, dict[str, str]] = {}
    swaps: dict[str, Any] = {}
    with contest.run_folder(weights) as run:
        inputs = {"contest": contest.digest()}
        if not run.is_current(Sensitivity, inputs):
            shutil.rmtree(run.path / ".partial", ignore_errors=True)
        begin = time.process_time()
        rounding = contest.rounded(run, document, weights)
        calibrated = time.process_time()
        if not run.is_current(Sensitivity, inputs):
            measure_sensitivity(
                run,
                document,
                contest.pages("calibration"),
                rounding,
                scoring,
                SearchSection(),
                inputs,
                grid_plans,
            )
            seconds = {"calibration": calibrated - begin, "scores": time.process_time() - calibrated}
            write_bytes(run.path / "seconds.json", json.dumps(seconds).encode())
        scored = json.loads((run.path / "seconds.json").read_text(encoding="utf-8"))
        sensitivity = run.load(Sensitivity)
        begin = time.process_time()
        with PlanJudge(run, document, contest.pages("calibration"), rounding, scoring, inputs) as judge:
            for budget in contest.bits:
                chosen = choose_formats(
                    sensitivity,
                    Budget(bits_per_weight=budget),
                    inputs,
                    judge=judge,
                    max_measurements=contest.max_measurements,
                )
                name = f"{budget:g} bits"
                plans[name] = {group: str(precision) for group, precision in chosen.groups.items()}
                if chosen.repair is not None:
                    record = chosen.repair
                    swaps[name] = {
                        "measured": record.num_measurements,
                        "kept": sum(swap.is_kept for swap in record.swaps),
                        "kl_before": record.before.measured,
                        "kl_after": record.after.measured,
                    }
    return {
        "plans": plans,
        "cpu_seconds": scored["calibration"] + scored["scores"],
        "swap_seconds": time.process_time() - begin,
        "swaps": swaps,
    }


def _of_judged(contest: SeedContest, others: Mapping[str, PlanOf]) -> dict[str, Any]:
    """Plans by scores of the judged pages themselves, their KL there, and sums of these scores for all plans.

    No plan has a smaller sum: what it is over that of another plan bounds what any search can win, as far as
    losses add up.
    """
    document, inputs = load_model(contest.model), contest.heldout_inputs()
    with contest.run_folder("of-judged") as run:
        rounding = contest.rounded(run, document, "nearest")
        if not run.is_current(Sensitivity, inputs):
            measure_sensitivity(
                run,
                document,
                contest.pages("heldout"),
                rounding,
                contest.scoring(),
                SearchSection(),
                inputs,
                grid_plans,
            )
        sensitivity = run.load(Sensitivity)
        plans = {
            f"{bits:g} bits": choose_formats(sensitivity, Budget(bits_per_weight=bits), inputs).groups
            for bits in contest.bits
        }
        judged = _measured(contest, run, document, rounding, {OF_JUDGED: plans})[OF_JUDGED]
    scores = {(row.group, row.precision): row.mean for row in sensitivity.rows}
    sums = {
        side: {
            budget: fsum(scores.get(choice, 0.0) for choice in plan.items()) for budget, plan in of.items()
        }
        for side, of in {**others, OF_JUDGED: plans}.items()
    }
    return {"plans": _texts_of(plans), "judged": judged, "sums": sums}


def _judged(contest: SeedContest, folder: str, plans: Mapping[str, PlanOf]) -> dict[str, Any]:
    """KL by page of every plan under the weights of a folder, nearest ones unless it is that of our own.

    A judge forgets what was measured on other pages, so that nearest weights are judged in a second folder.
    """
    document = load_model(contest.model)
    with contest.run_folder(folder) as run:
        return _measured(contest, run, document, contest.rounded(run, document, folder), plans)


def _measured(
    contest: SeedContest,
    run: RunFolder,
    document: DocumentModel,
    rounding: Rounding,
    plans: Mapping[str, PlanOf],
) -> dict[str, Any]:
    """KL on the held-out pages, page by page, of every plan."""
    heldout, inputs = contest.pages("heldout"), contest.heldout_inputs()
    with PlanJudge(run, document, heldout, rounding, contest.scoring(), inputs) as judge:
        return {
            name: {budget: judge(plan) for budget, plan in by_budget.items()}
            for name, by_budget in plans.items()
        }


def _texts(plans: Mapping[str, PlanOf]) -> dict[str, Any]:
    return {name: _texts_of(by_budget) for name, by_budget in plans.items()}


def _texts_of(plans: PlanOf) -> dict[str, dict[str, str]]:
    return {budget: {group: str(p) for group, p in plan.items()} for budget, plan in plans.items()}


def _plans(found: Mapping[str, Any]) -> PlanOf:
    return {
        budget: {group: Precision(text) for group, text in plan.items()}
        for budget, plan in found["plans"].items()
    }
