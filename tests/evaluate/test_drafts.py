"""Drafts on held-out pages: counted, summed up, kept for another gate, shown, and demanded by a gate."""

import dataclasses

import pytest

from ocrquant.artifacts import DraftReport, Drafts, Interval, Report, Transcripts
from ocrquant.engine.engine import Engine
from ocrquant.errors import GateError, ModelError
from ocrquant.evaluate.draft_words import draft_notes, drafts_lead, drafts_table, survival_table
from ocrquant.evaluate.drafts import measure_drafts
from ocrquant.evaluate.gate import enforce_gate, gate_checks, gate_notes, measured_text, verdict
from ocrquant.evaluate.html_page import render_html
from ocrquant.evaluate.html_parts import table
from ocrquant.evaluate.markdown import render_markdown
from ocrquant.evaluate.material import Material
from ocrquant.evaluate.tables import gate_table
from ocrquant.recipe.sections import GateSection
from tests.artifacts.test_drafts import page
from tests.engine.drafters import make_drafter
from tests.evaluate.making import report_of, transcripts
from tests.evaluate.test_stage import SECTION, draw_pages, open_stage
from tests.export.conftest import round_model

BOTH = SECTION.model_copy(update={"arms": ["bf16", "plan"], "drafter": "mine"})


def drafts(*pages):
    return Drafts(inputs={}, design="dflash2", block_size=16, pages=list(pages))


def measured(*pages) -> DraftReport:
    return measure_drafts(drafts(*pages), "mine", num_resamples=200, seed=0)


def test_survival_is_by_place():
    # Four windows accept 3, 1, 1 and no guess; one of them had no third place.
    first = page(0).model_copy(update={"tried": [2, 2, 1], "survived": [2, 1, 1], "num_accepted": 4})
    second = page(1).model_copy(update={"tried": [2, 1, 0], "survived": [1], "num_accepted": 1})
    found = measured(first, second)
    assert found.overall.survival == pytest.approx([3 / 4, 1 / 4, 1 / 4])
    table = survival_table(found)
    assert table.header == ("First guesses all accepted", "1", "2", "3")
    assert table.rows == (("Lines", "75\u202f%", "25\u202f%", "25\u202f%"),)


def test_acceptance_is_tokens_over_verifications():
    # Lines: 10 and 6 tokens in 2 windows each; blocks: 30 in 5. Together 46 in 9.
    found = measured(
        page(0), page(1, tokens=7, accepted=4), page(2, tokens=31, windows=5, accepted=25, kind="block")
    )
    assert found.overall.length.estimate == pytest.approx(46 / 9)
    assert found.by_kind["line"].length.estimate == pytest.approx(4.0)
    assert found.by_kind["block"].length == Interval(estimate=6.0, low=None, high=None)
    line = found.by_kind["line"].length
    # Two documents: a draw holds one of them twice, or both.
    assert (line.low, line.high) == (pytest.approx(3.0), pytest.approx(5.0))
    assert (found.overall.num_pages, found.overall.num_documents, found.overall.num_windows) == (3, 3, 9)


def test_pages_without_a_verification_have_no_length():
    found = measured(page(0, tokens=1, windows=0, accepted=0), page(1, tokens=1, windows=0, accepted=0))
    assert found.overall.length is None
    (check,) = gate_of(found, 2.0)
    assert not check.is_passed
    assert measured_text(check) == "nothing: no guess was verified"


def gate_of(found, limit):
    """The check of a minimum beside that of finite logits."""
    plan = dataclasses.make_dataclass("Plan", ["overall"])
    whole = dataclasses.make_dataclass("Whole", ["num_nonfinite", "num_pages", "num_documents"])(0, 3, 3)
    checks = gate_checks(GateSection(min_acceptance_length=limit), plan(whole), None, found.overall)
    assert checks[0].threshold == "finite_logits"
    return checks[1:]


@pytest.mark.parametrize(
    ("limit", "is_passed", "is_conclusive"),
    [(2.0, True, True), (4.0, True, False), (4.001, False, False), (5.1, False, True)],
)
def test_the_estimate_decides_from_below(limit, is_passed, is_conclusive):
    (check,) = gate_of(measured(page(0), page(1, tokens=7, accepted=4)), limit)
    assert (check.is_passed, check.is_conclusive) == (is_passed, is_conclusive)
    across = [note for note in gate_notes([check]) if "reaches across the limit" in note]
    assert len(across) == (not is_conclusive)


def test_texts_that_differ_are_counted_and_named():
    found = measured(page(0), page(1, other="another"))
    assert found.other_pages == ["doc1/crop"]
    assert found.overall.num_same == 1
    assert draft_notes(found)[0].startswith("With drafts the plan reads 1 page of 2 differently")
    assert "doc1/crop" in drafts_lead(found)
    assert drafts_table(found).rows[0][-1] == "1 of 2"
    same = measured(page(0))
    assert draft_notes(same) == []
    assert "Every page has the text" in drafts_lead(same)


def made_report(run, *, limit):
    """A whole report with made-up drafts, three tokens a verification on lines and six on blocks."""
    found = transcripts(12, documents=12)
    pages = [
        page(
            index, tokens=7 if it.kind == "line" else 13, accepted=4 if it.kind == "line" else 10
        ).model_copy(update={"page": it.page, "kind": it.kind, "document": it.document})
        for index, it in enumerate(found.pages)
    ]
    made = drafts(*pages)
    run.save(made)
    return report_of(
        run,
        found,
        gate=GateSection(min_acceptance_length=limit),
        evaluate=BOTH.model_copy(update={"num_bootstrap_samples": 200}),
        drafts=made,
    )


def test_a_report_shows_the_drafter_and_its_gate(run):
    report = made_report(run, limit=3.5)
    assert report.is_passed
    assert report.chain[-1].artifact == "drafts"
    # 9 lines with 6 tokens and 3 blocks with 12 in 2 windows each: 90 in 24.
    assert report.drafts.overall.length.estimate == pytest.approx(3.75)
    run.save(report)
    assert Report.load(run.path) == report
    text = render_markdown(Material.read(run.path, report, with_timings=False))
    assert "## Speculative decoding" in text
    assert "the drafter mine (DFlash2, blocks of 16 tokens)" in text
    assert "| All | 12 pages, 12 documents | 3.75 (" in text
    assert "| Lines | 9 pages, 9 documents | 3.00 (3.00 to 3.00) | 18 | 63 | 9 of 9 |" in text
    assert "| First guesses all accepted | 1 | 2 | 3 |" in text
    assert "| min\\_acceptance\\_length | all | 12 pages, 12 documents | 3.75 (" in text
    assert "| at least 3.5 | holds" in text
    page = render_html(Material(report=report, images={name: b"" for name in report.images}))
    assert page.count("<h2>Speculative decoding</h2>") == 1
    assert "the drafter mine (DFlash2, blocks of 16 tokens)" in page
    assert ">9 of 9</td>" in page


def test_a_gate_that_is_not_reached_fails_in_words(run):
    report = made_report(run, limit=5)
    assert not report.is_passed
    assert verdict(report).sentence.startswith("min_acceptance_length not reached. At ")
    assert gate_table(report).rows[-1][-1].startswith("not reached")
    assert '<td class="exceeded">not reached' in table(gate_table(report))
    with pytest.raises(GateError) as error:
        enforce_gate(report, run.path)
    text = str(error.value)
    assert text.startswith("gate: min_acceptance_length: expected at least 5, got 3.75 (95 % interval")
    assert text.endswith("then train the drafter further or lower the threshold")
    assert error.value.exit_code == 24


@pytest.fixture(scope="module")
def drafter(tiny_model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafter") / "random"
    make_drafter(folder, tiny_model_folder, second=True, target_layer_ids=(1, 2))
    return folder


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    draw_pages(folder)
    return folder


@pytest.fixture(scope="module")
def rounded(tiny_model_folder, tmp_path_factory):
    return round_model(tiny_model_folder, tmp_path_factory.mktemp("rounded"))


@pytest.fixture
def stage(tmp_path, rounded, page_folder):
    made = open_stage(tmp_path / "run", rounded, page_folder)
    made.export(rounded.plan("fp8"))
    return made


@pytest.fixture
def passes(monkeypatch):
    """Batches that an engine reads, true for those with a drafter."""
    made, original = [], Engine.run_until_done

    def counted(engine):
        made.append(engine.scheduler.drafts is not None)
        return original(engine)

    monkeypatch.setattr(Engine, "run_until_done", counted)
    monkeypatch.setattr("ocrquant.evaluate.report.render_html", lambda material: "")
    return made


def test_the_stage_reads_with_drafts_once(stage, drafter, passes):
    report = stage.run(section=BOTH, drafter=drafter)
    assert passes == [False] * 4 + [True] * 2
    found, plain = Drafts.load(stage.folder), Transcripts.load(stage.folder)
    assert (found.design, found.block_size) == ("dflash2", 8)
    assert [item.page for item in found.pages] == [item.page for item in plain.pages]
    # Guesses change no text, here of six tokens, the first of which comes with the prompt.
    assert [item.other_text for item in found.pages] == [None] * 6
    for item, own in zip(found.pages, plain.pages, strict=True):
        assert item.num_tokens == own.arms["plan"].num_tokens
        assert 0 < item.num_windows <= item.num_emitted <= item.num_tokens - 1
    assert 1 <= report.drafts.overall.length.estimate <= 8
    assert report.chain[-1].artifact == "drafts"
    assert not (stage.folder / ".partial" / "drafts").exists()

    passes.clear()
    more = BOTH.model_copy(update={"num_bootstrap_samples": 300})
    limit = report.drafts.overall.length.estimate + 0.01
    with pytest.raises(GateError, match="min_acceptance_length: expected at least"):
        stage.run(section=more, gate=GateSection(min_acceptance_length=limit), key=1, drafter=drafter)
    assert stage.run(
        section=more, gate=GateSection(min_acceptance_length=1), key=2, drafter=drafter
    ).is_passed
    assert passes == []

    plain_again = stage.run(section=BOTH.model_copy(update={"drafter": None}), key=3)
    assert plain_again.drafts is None
    assert plain_again.chain[-1].artifact == "transcripts"
    assert passes == []


def test_another_drafter_is_read_with_anew_and_a_kill_loses_one_batch(
    stage, drafter, passes, tmp_path, monkeypatch
):
    stage.run(section=BOTH, drafter=drafter)
    expected = (stage.folder / "drafts.json").read_bytes()
    other = tmp_path / "other"
    make_drafter(other, stage.rounded.source, block_size=4, target_layer_ids=(0, 3))
    passes.clear()
    assert stage.run(section=BOTH, key=1, drafter=other).drafts.block_size == 4
    assert passes == [True, True]

    passes.clear()
    original = Engine.run_until_done

    def killed(engine):
        if len(passes) == 1:
            raise KeyboardInterrupt
        return original(engine)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run_until_done", killed)
        with pytest.raises(KeyboardInterrupt):
            stage.run(section=BOTH, key=2, drafter=drafter)
    stage.run(section=BOTH, key=2, drafter=drafter)
    assert passes == [True, True]
    assert (stage.folder / "drafts.json").read_bytes() == expected


def test_a_drafter_of_another_target_is_refused(stage, tmp_path):
    make_drafter(tmp_path / "foreign", stage.rounded.source, target_sha256="0" * 64, target_layer_ids=(1, 2))
    with pytest.raises(ModelError, match="one made for 000000000000"):
        stage.run(section=BOTH, drafter=tmp_path / "foreign")
