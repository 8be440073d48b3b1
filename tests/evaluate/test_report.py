import pytest

from ocrquant.artifacts import Report, sha256_file
from ocrquant.recipe.sections import EvaluateSection
from tests.evaluate.making import report_of, runtimes, transcripts


def test_report_holds_every_arm_kind_and_comparison(run):
    report = report_of(run, transcripts())
    assert [arm.name for arm in report.arms] == ["bf16", "fp8", "nvfp4", "plan"]
    assert all(list(arm.by_kind) == ["line", "block"] for arm in report.arms)
    assert [(item.baseline, item.kind) for item in report.comparisons] == [
        (arm, kind) for arm in ("fp8", "nvfp4") for kind in (None, "line", "block")
    ]
    assert report.truth_sources == {"ground_truth": 48}
    assert len(report.worst_pages) == 5
    run.save(report)
    assert Report.load(run.path) == report


def test_sizes_come_from_what_was_written_or_would_be(run):
    report = report_of(run, transcripts())
    base, fp8, nvfp4, plan = report.arms
    assert base.bits_per_weight == 16
    assert base.checkpoint_bytes == 20_000_000
    assert fp8.checkpoint_bytes is None
    assert nvfp4.weight_bytes < plan.weight_bytes < fp8.weight_bytes
    assert plan.checkpoint_bytes == plan.weight_bytes + 5_000_000


def test_chain_names_every_artefact_with_its_digest(run):
    report = report_of(run, transcripts())
    names = [link.artifact for link in report.chain]
    assert names == [
        "pages",
        "statistics",
        "rounding",
        "sensitivity",
        "assignment",
        "pareto",
        "checkpoint",
        "transcripts",
    ]
    assert report.chain[0].sha256 == sha256_file(run.path / "pages.json")
    assert report.chain[-1].inputs == transcripts().inputs


def test_number_of_resamples_is_followed(run):
    few, many = (
        report_of(run, transcripts(), evaluate=EvaluateSection(num_bootstrap_samples=number))
        for number in (100, 3000)
    )
    assert (few.num_bootstrap_samples, many.num_bootstrap_samples) == (100, 3000)
    assert few.arms[2].overall.cer_increase != many.arms[2].overall.cer_increase
    assert few.arms[2].overall.cer == many.arms[2].overall.cer


def test_two_arms_alone(run):
    found = transcripts()
    pages = [
        page.model_copy(update={"arms": {name: page.arms[name] for name in ("bf16", "plan")}})
        for page in found.pages
    ]
    two = found.model_copy(update={"pages": pages, "runtimes": runtimes("bf16", "plan")})
    report = report_of(run, two)
    assert [arm.name for arm in report.arms] == ["bf16", "plan"]
    assert report.comparisons == []


def test_one_kind_of_page_is_not_compared_twice(run):
    found = transcripts()
    pages = [page for page in found.pages if page.kind == "line"]
    report = report_of(run, found.model_copy(update={"pages": pages}))
    assert [item.kind for item in report.comparisons] == [None, None]
    assert report.arms[0].overall == report.arms[0].by_kind["line"]


def test_worst_pages_keep_all_outputs(run):
    page = report_of(run, transcripts()).worst_pages[0]
    assert set(page.outputs) == set(page.cer) == {"bf16", "fp8", "nvfp4", "plan"}
    assert page.cer["plan"] - page.cer["bf16"] == pytest.approx(1 / 82, abs=1e-3)
