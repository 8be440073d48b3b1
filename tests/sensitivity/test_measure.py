import os
import shutil
import signal

import pytest
import torch

from ocrquant.artifacts import Journal, PageScores, Rounding, RunFolder, Sensitivity
from ocrquant.assign.grid import grid_plans
from ocrquant.errors import ModelError, PatternError
from ocrquant.formats import FORMATS, Precision
from ocrquant.recipe.sections import SearchSection, SensitivitySection
from ocrquant.sensitivity import growth, measure, measure_sensitivity, scorer

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
INPUTS = {"rounding": "1" * 64}


@pytest.fixture
def folder(tmp_path, rounded_run):
    """A copy of the run folder with the rounded weights."""
    path = tmp_path / "run"
    shutil.copytree(rounded_run[0], path, ignore=shutil.ignore_patterns(".lock", ".partial"))
    return path


@pytest.fixture
def score(document, pages):
    """Runs the stage in a folder and returns its artefact."""

    def run_stage(path, *, search=None, resident_bytes=1 << 30, **section):
        values = {"score": "both", "candidates": [NVFP4, FP8], "batch_size": 3, "grow_pages": False} | section
        with RunFolder.open(path, recipe_digest="0" * 64, recipe_text="{}") as run:
            return measure_sensitivity(
                run,
                document,
                pages,
                run.load(Rounding),
                SensitivitySection(**values),
                SearchSection(**(search or {})),
                INPUTS,
                grid_plans,
                resident_bytes=resident_bytes,
            )

    return run_stage


def test_artefact_has_a_row_for_every_choice(folder, score, document, pages):
    before = {name: tensor.clone() for name, tensor in document.model.state_dict().items()}
    num_tokens = sum(len(page.text) + 1 for page in pages)  # a token a character and the end
    found = score(folder)
    assert Sensitivity.load(folder) == found
    assert found.inputs == INPUTS
    assert [group.name for group in found.groups] == [group.name for group in document.map.groups]
    assert len(found.rows) == 2 * 2 * len(document.map.groups)
    for row in found.rows:
        group = document.map.group(row.group)
        assert row.num_pages == 6
        assert row.num_tokens == num_tokens
        assert row.mean > 0
        assert 0 < row.standard_error < row.mean
        assert row.weight_bytes == group.weight_bytes(row.precision)
        assert row.bits_per_weight == FORMATS[row.precision].bits_per_weight
    frame = found.to_frame()
    means = frame.pivot_table(index="group", columns=["score", "precision"], values="mean")
    assert (means["kl", "nvfp4"] > means["kl", "fp8"]).all()
    after = document.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(before[name].dtype is after[name].dtype for name in before)
    assert not (folder / ".partial" / "sensitivity").exists()


def test_scores_by_page_add_up_to_the_rows(folder, score, pages):
    found = score(folder)
    by_page = PageScores.load(folder)
    assert by_page.inputs == found.inputs
    assert sorted(page.id for page in by_page.pages) == sorted(page.id for page in pages)
    lengths = {page.id: len(page.text) + 1 for page in pages}
    assert [page.num_tokens for page in by_page.pages] == [lengths[page.id] for page in by_page.pages]
    rows = {(row.group, row.precision, row.score): row for row in found.rows}
    assert {(row.group, row.precision, row.score) for row in by_page.rows} == set(rows)
    for row in by_page.rows:
        expected = rows[row.group, row.precision, row.score].mean
        assert sum(row.sums) / sum(lengths.values()) == pytest.approx(expected)


def test_only_what_is_asked_for_is_measured(folder, score):
    found = score(folder, score="gradient", candidates=[FP8], num_pages=2)
    assert {(row.score, row.precision, row.num_pages) for row in found.rows} == {("gradient", FP8, 2)}


def test_forced_groups_are_scored_and_kept_ones_not(folder, score):
    search = {"keep_bf16": ["layers.*"], "force": {"fp8": ["lm_head"]}}
    found = score(folder, score="kl", search=search, num_pages=2)
    assert [(row.group, row.precision) for row in found.rows] == [("lm_head", FP8)]
    assert {tuple(group.precisions) for group in found.groups} == {(BF16,), (FP8,)}


def test_pattern_that_matches_nothing_is_refused(folder, score):
    with pytest.raises(PatternError):
        score(folder, search={"keep_bf16": ["layers.77.*"]})


def test_batches_and_spilling_decide_nothing(folder, score, tmp_path):
    whole = score(folder, num_pages=4)
    spilled = score(folder, num_pages=4, resident_bytes=0)
    assert spilled == whole
    single = score(folder, num_pages=4, batch_size=1)
    for row, other in zip(whole.rows, single.rows, strict=True):
        # Sums of another order may turn a code at the edge between two.
        assert other.mean == pytest.approx(row.mean, rel=0.05)
        assert other.standard_error == pytest.approx(row.standard_error, rel=0.2)


def killed(function, after):
    """Runs a function in a child process that is killed without warning after so many journal lines."""
    child = os.fork()
    if child == 0:
        append, count = Journal.append, [0]

        def counting(self, record):
            append(self, record)
            count[0] += 1
            if count[0] == after:
                os.kill(os.getpid(), signal.SIGKILL)

        Journal.append = counting
        try:
            function()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def alarmed(function, seconds):
    """Runs a function in a child process that an alarm ends without warning; whether it came in time."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            function()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGALRM


@pytest.fixture
def counted(monkeypatch):
    """The changes that are measured, as they are."""
    seen, divergences = [], scorer.divergences

    def counting(trace, changes, *others):
        seen.extend(changes)
        return divergences(trace, changes, *others)

    monkeypatch.setattr(scorer, "divergences", counting)
    return seen


def test_killed_and_repeated_ends_in_the_same_bytes(folder, score, counted):
    score(folder, num_pages=4)
    expected = (folder / Sensitivity.FILE_NAME).read_bytes()
    by_page = (folder / PageScores.FILE_NAME).read_bytes()
    (folder / Sensitivity.FILE_NAME).unlink()
    in_all = len(counted)
    counted.clear()
    # After a batch's gradients, in the middle of its divergences, and of a later batch.
    for after in (1, 2, 3):
        assert killed(lambda: score(folder, num_pages=4), after) == -signal.SIGKILL
        assert not (folder / Sensitivity.FILE_NAME).exists()
    score(folder, num_pages=4)
    assert (folder / Sensitivity.FILE_NAME).read_bytes() == expected
    assert (folder / PageScores.FILE_NAME).read_bytes() == by_page
    assert 0 < len(counted) < in_all


def test_killed_at_random_moments_ends_in_the_same_bytes(folder, score, rng):
    def run():
        return score(folder, score="screened", num_pages=4)

    run()
    expected = (folder / Sensitivity.FILE_NAME).read_bytes()
    (folder / Sensitivity.FILE_NAME).unlink()
    num_kills = 0
    for longest in (0.1, 0.4, 0.8, 0.8, 1.6, 1.6):
        if not alarmed(run, rng.uniform(0.02, longest)):
            break
        num_kills += 1
    assert num_kills > 0
    run()
    assert (folder / Sensitivity.FILE_NAME).read_bytes() == expected


def test_half_a_stage_of_other_inputs_is_not_continued(folder, score, monkeypatch, counted):
    assert killed(lambda: score(folder, num_pages=2), 3) == -signal.SIGKILL
    monkeypatch.setitem(INPUTS, "rounding", "2" * 64)
    found = score(folder, score="kl", num_pages=2)
    assert len(counted) % (len(found.rows) + 1) == 0  # all groups and formats, and the cache


def test_screened_scores_are_measured_or_corrected_gradients(folder, score, counted):
    found = score(folder, score="screened", num_pages=4)
    by_kind = {
        kind: {(row.group, row.precision): row for row in found.rows if row.score == kind}
        for kind in ("gradient", "screened")
    }
    assert by_kind["gradient"].keys() == by_kind["screened"].keys()
    assert len(found.rows) == 2 * len(by_kind["gradient"])
    measured = {choice for choice, row in by_kind["screened"].items() if row.is_measured}
    asked = {choice for change in counted for choice in change.groups.items()}
    assert measured == asked
    assert 0 < len(measured) < len(by_kind["gradient"])
    kl = {(row.group, row.precision): row for row in score(folder, score="kl", num_pages=4).rows}
    for choice in measured:
        assert by_kind["screened"][choice].mean == kl[choice].mean
    for choice in kl.keys() - measured:
        row = by_kind["screened"][choice]
        assert row.mean == pytest.approx(kl[choice].mean, rel=2.0)
        assert row.standard_error > by_kind["gradient"][choice].standard_error / 10
    assert found.plan_score == "screened"


def test_pages_grow_until_plans_no_longer_change(folder, score, monkeypatch):
    monkeypatch.setattr(growth, "FIRST_PAGES", 2)
    monkeypatch.setattr(measure, "MAX_CHANGE", 1e9)
    early = score(folder, grow_pages=True)
    assert (early.stopped, [step.num_pages for step in early.growth]) == ("stable", [2, 4])
    assert early.growth[0].regret is None
    assert {row.num_pages for row in early.rows} == {cache.num_pages for cache in early.kv_cache} == {4}
    monkeypatch.setattr(measure, "MAX_CHANGE", -1.0)
    whole = score(folder, grow_pages=True, score="gradient")
    assert (whole.stopped, [step.num_pages for step in whole.growth]) == ("limit", [2, 4, 6])
    assert {row.num_pages for row in whole.rows} == {6}
    fixed = score(folder, score="gradient")
    assert (fixed.stopped, [step.num_pages for step in fixed.growth]) == ("fixed", [6])


def test_cache_of_keys_and_values_is_scored(folder, score):
    found = score(folder, score="gradient", num_pages=2)
    (cache,) = found.kv_cache
    # One full-attention layer of two heads of 32 elements, keys and values.
    assert (cache.precision, cache.num_pages, cache.elements_per_token) == ("fp8", 2, 2 * 2 * 32)
    assert 0 < cache.mean < sum(row.mean for row in found.rows)


def test_score_that_is_not_finite_names_the_group(folder, score, monkeypatch):
    def broken(trace, changes, *others):
        return [[float("nan")] * len(trace.num_tokens) for _ in changes]

    monkeypatch.setattr(scorer, "divergences", broken)
    with pytest.raises(ModelError, match=r"kl score of group layers\.0\.gdn\.qkvz in fp8: expected finite"):
        score(folder, score="kl")
    assert not (folder / Sensitivity.FILE_NAME).exists()
