from pathlib import Path

import pytest

from ocrquant.errors import GateError
from ocrquant.evaluate.gate import enforce_gate, gate_checks, gate_notes, verdict
from ocrquant.evaluate.scoring import Scores
from ocrquant.recipe.sections import GateSection
from tests.evaluate.making import damage, output, report_of, transcripts

LIMITS = GateSection(max_cer_increase=0.01, max_worst_kind_cer_increase=0.02, max_kl=0.1)


def corrupted(**changes):
    """The plan's outputs damaged, as by a checkpoint that was written wrongly."""
    found = transcripts()
    pages = [
        page.model_copy(
            update={"arms": {**page.arms, "plan": output(damage(page.truth, 4), kl=30.0, **changes)}}
        )
        for page in found.pages
    ]
    return found.model_copy(update={"pages": pages})


def checks_of(report):
    return {check.threshold: check for check in report.gate}


def test_a_sound_plan_passes(run):
    report = report_of(run, transcripts(), gate=LIMITS)
    assert report.is_passed
    assert list(checks_of(report)) == [
        "finite_logits",
        "max_cer_increase",
        "max_worst_kind_cer_increase",
        "max_kl",
    ]
    assert verdict(report).status == "passed"
    enforce_gate(report, run.path)


def test_planted_corruption_fails_every_threshold(run):
    report = report_of(run, corrupted(), gate=LIMITS)
    assert [name for name, check in checks_of(report).items() if not check.is_passed] == [
        "max_cer_increase",
        "max_worst_kind_cer_increase",
        "max_kl",
    ]
    found = verdict(report)
    assert found.status == "failed"
    assert found.sentence.startswith("max_cer_increase and max_worst_kind_cer_increase and max_kl exceeded.")
    with pytest.raises(GateError) as error:
        enforce_gate(report, Path("runs/mine"))
    text = str(error.value)
    assert text.startswith("gate: max_cer_increase and 2 more: expected at most 0.01, got 0.2")
    assert "95 % interval" in text
    assert text.endswith("read runs/mine/report.html, then raise the budget or the threshold")
    assert "\n" not in text
    assert error.value.exit_code == 24


def test_one_broken_kind_fails_where_the_mean_hides_it(run):
    found = transcripts(96)
    pages = [
        page.model_copy(update={"arms": {**page.arms, "plan": output(damage(page.truth, 25), kl=0.1)}})
        if page.kind == "block" and index % 8 == 3
        else page
        for index, page in enumerate(found.pages)
    ]
    gate = GateSection(max_cer_increase=0.02, max_worst_kind_cer_increase=0.015)
    report = report_of(run, found.model_copy(update={"pages": pages}), gate=gate)
    checks = checks_of(report)
    assert checks["max_cer_increase"].is_passed
    assert not checks["max_worst_kind_cer_increase"].is_passed
    assert checks["max_worst_kind_cer_increase"].kind == "block"
    with pytest.raises(GateError, match="on blocks"):
        enforce_gate(report, run.path)


def test_logits_that_are_no_numbers_fail_any_gate(run):
    found = transcripts(12)
    broken = output(found.pages[0].truth, kl=None)
    pages = [found.pages[0].model_copy(update={"arms": {**found.pages[0].arms, "plan": broken}})]
    report = report_of(
        run,
        found.model_copy(update={"pages": [*pages, *found.pages[1:]]}),
        gate=GateSection(max_cer_increase=1),
    )
    with pytest.raises(GateError, match="finite_logits: expected at most 0, got 1 page with NaN or Inf"):
        enforce_gate(report, run.path)


def test_no_finite_logits_at_all_fail_max_kl(run):
    found = transcripts(8)
    pages = [
        page.model_copy(update={"arms": {**page.arms, "plan": output(page.truth, kl=None)}})
        for page in found.pages
    ]
    report = report_of(run, found.model_copy(update={"pages": pages}), gate=GateSection(max_kl=9))
    assert not checks_of(report)["max_kl"].is_passed


def test_the_point_estimate_decides_and_an_interval_across_the_limit_is_said(run):
    report = report_of(run, transcripts(plan_every=30))
    plan = report.arm("plan")
    estimate = plan.overall.cer_increase
    assert estimate.low < estimate.estimate < estimate.high
    for limit, is_passed in ((estimate.estimate, True), (estimate.estimate * 0.999, False)):
        checks = gate_checks(GateSection(max_cer_increase=limit), plan)
        assert checks[-1].is_passed is is_passed
        assert not checks[-1].is_conclusive
        assert any("interval reaches across the limit" in note for note in gate_notes(checks))
    far = gate_checks(GateSection(max_cer_increase=0.9), plan)
    assert far[-1].is_conclusive
    assert gate_notes(far) == []


@pytest.mark.parametrize(
    ("documents", "words"),
    [(1, "one document says nothing about others"), (4, "the intervals are too narrow")],
)
def test_a_gate_on_too_few_documents_says_so(run, documents, words):
    report = report_of(run, transcripts(8, documents=documents), gate=GateSection(max_cer_increase=0.5))
    notes = [note for note in report.notes if note.startswith("The gate has too few pages")]
    assert len(notes) == 1
    assert words in notes[0]
    assert report.is_passed


def test_enough_documents_raise_no_doubt():
    scores = Scores(transcripts(48, documents=12), num_resamples=200, seed=0)
    assert scores.metrics("plan").num_documents == 12


def test_no_gate(run):
    report = report_of(run, transcripts())
    assert report.gate == []
    assert verdict(report).status == "none"
    enforce_gate(report, run.path)


def test_verdict_compares_with_bf16_in_one_sentence(run):
    sentence = verdict(report_of(run, transcripts())).sentence
    assert sentence.startswith("At 6.29 bits per weight the plan reads with a CER of ")
    assert "bf16 with" in sentence
    assert "95\u202f% interval" in sentence


def test_verdict_without_ground_truth_speaks_of_the_transcription(run):
    sentence = verdict(report_of(run, transcripts(truth_source="model"))).sentence
    assert "differs from bf16's own transcription" in sentence
    assert "CER" not in sentence
