"""The verdict on equivalence from transcripts: outcomes, the kind that decides, words, gate and frame."""

import pytest

from ocrquant.artifacts import Report
from ocrquant.errors import GateError
from ocrquant.evaluate import equivalence_frame
from ocrquant.evaluate.equivalence import measure_equivalence
from ocrquant.evaluate.gate import enforce_gate, verdict
from ocrquant.evaluate.html_parts import table
from ocrquant.evaluate.markdown import render_markdown
from ocrquant.evaluate.material import Material
from ocrquant.evaluate.scoring import Scores
from ocrquant.evaluate.tables import gate_table
from ocrquant.evaluate.verdict import (
    broken_outputs_table,
    equivalence_notes,
    equivalence_sentence,
    equivalence_table,
    equivalence_title,
)
from ocrquant.recipe.sections import EquivalenceSection, EvaluateSection, GateSection
from tests.evaluate.making import damage, output, report_of, transcripts

MARGIN = EquivalenceSection(cer_margin=0.01)


def with_plan(found, make):
    """The same transcripts with other outputs of the plan."""
    pages = [
        page.model_copy(update={"arms": {**page.arms, "plan": make(index, page)}})
        for index, page in enumerate(found.pages)
    ]
    return found.model_copy(update={"pages": pages})


def alike(num_pages=96, documents=23, **options):
    """A plan that reads what bf16 reads."""
    found = transcripts(num_pages, documents=documents, **options)
    return with_plan(found, lambda _, page: page.arms["bf16"].model_copy(update={"kl_sum": 0.1}))


def measured(found, section=MARGIN, *, is_judged_by_model=False):
    return measure_equivalence(
        Scores(found, num_resamples=400, seed=0), section, is_judged_by_model=is_judged_by_model
    )


def test_equal_texts_are_equivalent_on_every_kind():
    found = measured(alike())
    assert found.outcome == "equivalent"
    assert found.is_passed
    assert [(test.metric, test.kind, test.outcome) for test in found.margins] == [
        ("cer", "line", "equivalent"),
        ("cer", "block", "equivalent"),
    ]
    assert len(found.rises) == 2 * 3
    assert found.num_more_pages is None
    assert equivalence_title(found) == "Equivalent within 1.00 points of CER"
    assert "On each kind of page the change stays within the margin" in equivalence_sentence(found)


def test_the_worst_kind_decides_where_the_mean_hides_it():
    # Every second block loses 2 of its 82 characters, 1.2 points over all blocks; lines lose none.
    found = measured(
        with_plan(
            alike(),
            lambda index, page: output(damage(page.truth, 30)) if index % 8 == 3 else page.arms["plan"],
        )
    )
    assert {test.kind: test.outcome for test in found.margins} == {"line": "equivalent", "block": "worse"}
    assert found.outcome == "worse"
    assert equivalence_title(found) == "Worse than bf16"
    sentence = equivalence_sentence(found)
    words = "The loss is more than chance and not shown to stay within the margin: +1."
    assert sentence.startswith(words)
    assert "points of CER on blocks" in sentence
    far = measured(with_plan(alike(), lambda _, page: output(damage(page.truth, 10))))
    assert "beyond the margin" in equivalence_sentence(far)


def test_scatter_about_nothing_needs_more_pages():
    def make(index, page):
        return output(damage(page.truth, 15)) if index % 7 == index // 23 else page.arms["plan"]

    base = alike()
    noisy = with_plan(base, make)
    pages = [
        page.model_copy(update={"arms": {**page.arms, "bf16": make(index + 3, page)}})
        for index, page in enumerate(noisy.pages)
    ]
    found = measured(noisy.model_copy(update={"pages": pages}))
    assert found.outcome == "unsettled"
    assert found.num_more_pages > 0
    open_tests = [test for test in found.margins if test.outcome == "unsettled"]
    # The kind that needs most decides, scaled to all pages of the same mix.
    share = max(test.num_more_documents / test.num_documents for test in open_tests)
    assert found.num_more_pages == pytest.approx(share * 96, abs=1)
    assert equivalence_title(found) == "Not enough pages for a verdict"
    sentence = equivalence_sentence(found)
    assert f"about {found.num_more_pages:,} more pages of the same mix" in sentence
    wide = measured(
        found=noisy.model_copy(update={"pages": pages}), section=EquivalenceSection(cer_margin=0.3)
    )
    assert wide.outcome == "equivalent"


def test_one_document_is_not_enough():
    found = measured(alike(8, documents=1))
    assert found.outcome == "unsettled"
    assert [test.low for test in found.margins] == [None, None]
    assert [test.num_more_documents for test in found.margins] == [9, 9]
    sentence = equivalence_sentence(found)
    assert "come from 1 document, and below 10 nothing is concluded: at least 72 more pages" in sentence


@pytest.mark.parametrize(
    ("event", "broken", "words"),
    [
        ("loop", {"text": "abc " * 40}, "end in a loop"),
        ("cut_off", {"finished": False}, "are cut off at the token limit"),
        ("empty", {"text": ""}, "are empty"),
    ],
)
def test_a_rise_in_broken_outputs_beyond_chance_is_worse(event, broken, words):
    def damaged(num_documents):
        return with_plan(
            alike(),
            lambda index, page: page.arms["plan"].model_copy(
                update=broken if index < num_documents and page.kind == "line" else {}
            ),
        )

    wide = EquivalenceSection(cer_margin=0.99)
    found = measured(damaged(16), wide)  # 12 lines of as many documents
    rise = next(test for test in found.rises if (test.event, test.kind) == (event, "line"))
    assert (rise.num_more, rise.num_fewer, rise.outcome) == (12, 0, "worse")
    assert found.outcome == "worse"
    assert f"More lines {words} than in bf16, in 12 documents against 0" in equivalence_sentence(found)
    # 6 of 6: p = 0.016 by itself, which does not stand among eight claims: neither equal nor worse.
    few = measured(damaged(8), wide)
    rise = next(test for test in few.rises if (test.event, test.kind) == (event, "line"))
    assert (rise.num_more, rise.outcome) == (6, "unsettled")
    assert rise.num_more_documents > 0
    assert few.outcome == "unsettled"
    assert "which may be chance" in equivalence_sentence(few)
    # One page alone is within chance.
    assert measured(damaged(1), wide).is_passed


def test_fewer_broken_outputs_are_no_fault():
    base = alike()
    pages = [
        page.model_copy(
            update={
                "arms": {**page.arms, "bf16": page.arms["bf16"].model_copy(update={"finished": index > 40})}
            }
        )
        for index, page in enumerate(base.pages)
    ]
    found = measured(base.model_copy(update={"pages": pages}))
    assert found.is_passed
    assert sum(test.num_fewer for test in found.rises) > 10


def test_kl_is_tested_where_it_has_a_margin():
    base = alike()  # 0.1 nats over 40 tokens: 0.0025 a token
    assert measured(base, EquivalenceSection(cer_margin=0.01, kl_margin=0.003)).outcome == "equivalent"
    found = measured(base, EquivalenceSection(cer_margin=0.01, kl_margin=0.002))
    assert found.outcome == "worse"
    assert "0.0025 nats of KL a token on blocks" in equivalence_sentence(found)
    assert "Equivalent within 1.00 points of CER and 0.003 nats of KL" in equivalence_title(
        measured(base, EquivalenceSection(cer_margin=0.01, kl_margin=0.003))
    )


def test_logits_that_are_no_numbers_are_worse():
    found = measured(
        with_plan(alike(), lambda index, page: output(page.truth, kl=None if index == 3 else 0.1))
    )
    assert found.outcome == "worse"
    assert equivalence_sentence(found) == "Logits are NaN or infinite on 1 page."


def test_a_better_plan_passes():
    base = alike()
    pages = [
        page.model_copy(update={"arms": {**page.arms, "bf16": output(damage(page.truth, 8))}})
        for page in with_plan(base, lambda _, page: output(page.truth)).pages
    ]
    found = measured(base.model_copy(update={"pages": pages}))
    assert found.outcome == "better"
    assert found.is_passed
    assert equivalence_title(found) == "No worse within 1.00 points of CER"


def test_disagreement_with_a_stand_in_is_judged_against_the_margin_alone():
    # Without a truth bf16 has no error, so any change would be a loss beyond chance.
    def make(index, page):
        return output(damage(page.truth, 30) if index % 8 == 3 else page.truth, kl=0.1)

    found = with_plan(alike(truth_source="model"), make)
    section = EquivalenceSection(cer_margin=0.014)
    outcomes = [
        {test.kind: test.outcome for test in measured(found, section, is_judged_by_model=judged).margins}
        for judged in (False, True)
    ]
    assert outcomes == [
        {"line": "equivalent", "block": "worse"},
        {"line": "equivalent", "block": "unsettled"},
    ]


def test_pages_without_text_give_no_verdict():
    base = alike()
    empty = [page.model_copy(update={"truth": ""}) for page in base.pages]
    found = measured(base.model_copy(update={"pages": empty}))
    assert (found.margins, found.outcome) == ([], "unsettled")
    assert equivalence_sentence(found) == "No page has a truth with characters in it."


def report(run, found, *, gate=None, margin=0.01):
    section = EvaluateSection(num_bootstrap_samples=400, equivalence=EquivalenceSection(cer_margin=margin))
    return report_of(run, found, gate=gate, evaluate=section)


def test_the_gate_demands_it(run):
    gate = GateSection(require_equivalence=True)
    passed = report(run, alike(), gate=gate)
    assert passed.is_passed
    enforce_gate(passed, run.path)
    assert verdict(passed).title == "Gate passed; equivalent within 1.00 points of CER"

    failed = report(run, with_plan(alike(), lambda _, page: output(damage(page.truth, 10))), gate=gate)
    assert [check.threshold for check in failed.gate if not check.is_passed] == ["require_equivalence"]
    with pytest.raises(GateError) as error:
        enforce_gate(failed, run.path)
    assert error.value.exit_code == 24
    text = str(error.value)
    assert text.startswith("gate: require_equivalence: expected the plan equal to bf16 within the margin")
    assert "got Worse than bf16: The loss is more than chance" in text
    assert "\n" not in text
    assert verdict(failed).title == "Gate failed; worse than bf16"
    assert verdict(failed).sentence.startswith("require_equivalence is not met. The loss ")


def test_too_few_pages_fail_the_gate_as_well(run):
    few = report(run, alike(8, documents=2), gate=GateSection(require_equivalence=True))
    with pytest.raises(GateError, match="got Not enough pages for a verdict"):
        enforce_gate(few, run.path)


def test_without_a_gate_the_verdict_is_only_told(run):
    found = report(run, with_plan(alike(), lambda _, page: output(damage(page.truth, 10))))
    enforce_gate(found, run.path)
    assert verdict(found).title == "Worse than bf16"
    assert verdict(found).status == "none"


def test_report_keeps_and_shows_it(run):
    found = report(run, alike(), gate=GateSection(require_equivalence=True, max_cer_increase=0.5))
    run.save(found)
    assert Report.load(run.path) == found
    text = render_markdown(Material.read(run.path, found, with_timings=False))
    assert "## Equal to bf16?" in text
    assert "| CER, points | lines | 72 pages, 23 documents | 0.00 (0.00 to 0.00) | 1.00 | holds |" in text
    assert "## Loops, cut-off and empty outputs" in text
    assert "Measured (90\u202f%)" in text
    assert equivalence_notes(found.equivalence)[0] in found.notes
    assert "fewer than one in 8 documents" in equivalence_notes(found.equivalence)[0]


def test_html_shows_each_test_with_its_colour(run):
    lost = with_plan(
        alike(), lambda index, page: output(damage(page.truth, 10) if index % 4 == 3 else page.truth)
    )
    found = report(run, lost, gate=GateSection(require_equivalence=True))
    section = table(equivalence_table(found.equivalence, found))
    rows = section.split("<tr")[2:]
    assert ['class="holds"' in row for row in rows] == [True, False]
    assert ['class="exceeded"' in row for row in rows] == [False, True]
    gate = table(gate_table(found))
    assert '<td class="exceeded">not shown</td>' in gate
    assert ">Worse than bf16</td>" in gate  # the sentence above says why


def test_a_recipe_without_a_margin_has_no_verdict(run):
    found = report_of(run, alike())
    assert found.equivalence is None
    text = render_markdown(Material.read(run.path, found, with_timings=False))
    assert "Equal to bf16?" not in text
    assert "## Loops, cut-off and empty outputs" in text


def test_broken_outputs_are_counted_by_arm_and_kind_with_paired_differences(run):
    broken = with_plan(
        alike(),
        lambda index, page: page.arms["plan"].model_copy(
            update={"text": "", "finished": index > 7} if index < 9 else {}
        ),
    )
    found = report(run, broken)
    plan = found.arm("plan").by_kind["line"]  # index 0 to 8 without 3 and 7
    assert (plan.num_empty, plan.num_unfinished, plan.num_repetition_loops) == (7, 6, 0)
    assert plan.empty_increase.estimate == pytest.approx(7 / 72)
    assert plan.empty_increase.low > 0
    assert found.arms[0].by_kind["line"].empty_increase is None
    shown = broken_outputs_table(found)
    rows = [row for row in shown.rows if row[1] == "Plan"]
    assert rows[0][2:5] == ("0", "0.00 (0.00 to 0.00)", "6")
    assert rows[0][5].startswith("+8.33 (")
    assert rows[1][6] == "2"
    assert found.notes.count("The plan gives an empty text on 9 pages, bf16 on 0.") == 1


def test_frame_of_a_finished_run(run):
    run.save(alike())
    frame = equivalence_frame(run.path, cer_margin=0.01, kl_margin=0.001, num_resamples=300)
    assert list(frame["test"]) == ["cer", "kl"] * 2 + ["loop", "cut_off", "empty"] * 2
    outcomes = frame.set_index(["test", "kind"])["outcome"]
    assert outcomes["cer", "line"] == "equivalent"
    assert outcomes["kl", "block"] == "worse"
    assert {"margin", "estimate", "low", "high", "num_more_documents"} <= set(frame.columns)
    looser = equivalence_frame(run.path, cer_margin=0.01, kl_margin=0.01, num_resamples=300)
    assert set(looser["outcome"]) == {"equivalent"}
