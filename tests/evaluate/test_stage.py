"""The whole stage on a tiny model with random weights, whose nonsense is at least the same every time."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ocrquant.artifacts import (
    Assignment,
    CheckpointRecord,
    PageSet,
    Report,
    Rounding,
    RunFolder,
    Sensitivity,
    SensitivityRow,
    Transcripts,
)
from ocrquant.engine.engine import Engine
from ocrquant.engine.scoring import Scorer
from ocrquant.errors import ArtifactError, GateError
from ocrquant.evaluate import EvaluatedModel, evaluate_run
from ocrquant.evaluate.gate import verdict
from ocrquant.export import export_checkpoint
from ocrquant.formats import FORMATS, Precision
from ocrquant.kernels.extension import extension
from ocrquant.models.processing import open_processor
from ocrquant.pages import Page, load_pages, to_record
from ocrquant.recipe.sections import EquivalenceSection, EvaluateSection, ExportSection, GateSection
from ocrquant.sensitivity.candidates import group_record
from tests.evaluate.making import RECIPE, ZERO, draw_page
from tests.export.conftest import RoundedModel, round_model

SECTION = EvaluateSection(max_new_tokens=6, batch_size=3, num_bootstrap_samples=100)
TEXTS = ["abc 12", "a longer line", "two\nlines", "x", "third 3", "more\nthan one"]
FILES = ("transcripts.json", "report.json", "report.html", "report.md")


@dataclass
class Stage:
    """Everything that the stage is called with."""

    folder: Path
    rounded: RoundedModel
    pages: list[Page]

    def open(self) -> RunFolder:
        return RunFolder.open(self.folder, recipe_digest=ZERO, recipe_text=RECIPE)

    def run(self, *, section=SECTION, gate=None, pages=None, key=0, drafter=None) -> Report:
        with self.open() as run:
            return evaluate_run(
                run,
                self.pages if pages is None else pages,
                section,
                {"checkpoint": run.digest(CheckpointRecord), "recipe": f"{key}" * 64},
                gate=gate,
                model=EvaluatedModel(
                    name="tiny",
                    source=self.rounded.source,
                    device=torch.device("cpu"),
                    prompts={},
                    drafter=drafter,
                ),
                recipe_sha256=ZERO,
                seed=0,
            )

    def export(self, groups: dict[str, Precision], *, kv_cache: str = "bf16") -> None:
        """Writes scores, plan and checkpoint."""
        model_map = self.rounded.model_map
        records, rows = [], []
        for group in model_map.groups:
            open_to_it = [p for p in FORMATS if group.reason_against(p) is None]
            records.append(group_record(group, open_to_it))
            rows += [
                SensitivityRow(
                    group=group.name,
                    precision=precision,
                    score="kl",
                    mean=0.01,
                    standard_error=0.001,
                    num_pages=2,
                    num_tokens=20,
                    bits_per_weight=FORMATS[precision].bits_per_weight,
                    weight_bytes=group.weight_bytes(precision),
                )
                for precision in open_to_it
                if precision is not Precision.BF16
            ]
        with self.open() as run:
            run.save(Sensitivity(inputs={}, groups=records, rows=rows))
            plan = Assignment(
                inputs={},
                budget={"bits_per_weight": 16.0},
                score="kl",
                predicted_loss=0.1,
                bits_per_weight=6.0,
                weight_bytes=1,
                kv_cache=kv_cache,
                groups=groups,
            )
            run.save(plan)
            record = export_checkpoint(
                run.path,
                ExportSection(kv_cache=kv_cache),
                source=self.rounded.source,
                model_map=model_map,
                assignment=plan,
                rounding=run.load(Rounding),
                inputs={},
            )
            run.save(record)

    def contents(self) -> dict[str, bytes]:
        return {name: (self.folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def rounded(tiny_model_folder, tmp_path_factory):
    return round_model(tiny_model_folder, tmp_path_factory.mktemp("rounded"))


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    draw_pages(folder)
    return folder


def draw_pages(folder):
    """Six held-out pages and one to calibrate on."""
    for index, text in enumerate(TEXTS):
        kind = "block" if "\n" in text else "line"
        draw_page(folder / f"heldout/{kind}/{index}.png", text)
        (folder / f"heldout/{kind}/{index}.txt").write_text(text)
    draw_page(folder / "calibration/line/other.png", "other")
    (folder / "calibration/line/other.txt").write_text("other")


@pytest.fixture
def stage(tmp_path, rounded, page_folder):
    return open_stage(tmp_path / "run", rounded, page_folder)


def open_stage(folder, rounded, page_folder):
    """A run folder up to the rounded weights."""
    pages = [page for page in load_pages(page_folder, default_kind="line") if page.split == "heldout"]
    made = Stage(folder, rounded, pages)
    with made.open() as run:
        for name in (Rounding.FILE_NAME, Rounding.TENSORS_NAME):
            shutil.copy(rounded.run / name, folder / name)
        records = [to_record(page, page_folder) for page in pages]
        run.save(PageSet(inputs={}, source="pages", pages=records))
    return made


@pytest.fixture
def steps(monkeypatch):
    """Calls that run a model, in order: ``text`` or ``logits``."""
    made = []

    def counted(name, original):
        def call(*args, **options):
            made.append(name)
            return original(*args, **options)

        return call

    for name, kind, method in (("text", Engine, "run_until_done"), ("logits", Scorer, "score")):
        monkeypatch.setattr(kind, method, counted(name, getattr(kind, method)))
    return made


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """Drawing takes longer than everything else here; other tests look at the pictures."""
    if request.function.__name__ != "test_stage_judges_all_arms":
        show = "ocrquant.evaluate.report.render_html"
        monkeypatch.setattr(show, lambda material: verdict(material.report).title)


def mixed(stage):
    return stage.rounded.plan("nvfp4", "bf16", "fp8")


def test_stage_judges_all_arms(stage):
    stage.export(mixed(stage), kv_cache="fp8")
    report = stage.run()
    assert [arm.name for arm in report.arms] == ["bf16", "fp8", "nvfp4", "plan"]
    base, fp8, nvfp4, plan = (arm.overall for arm in report.arms)
    assert base.mean_kl == 0
    assert 0 < fp8.mean_kl < nvfp4.mean_kl
    assert plan.mean_kl > 0
    found = Transcripts.load(stage.folder)
    assert [page.page for page in found.pages] == [page.id for page in stage.pages]
    first = found.pages[0]
    assert first.truth == stage.pages[0].text
    processor = open_processor(stage.rounded.source)
    assert first.arms["plan"].num_kl_tokens == len(processor.answer_ids(first.truth))
    record = CheckpointRecord.load(stage.folder)
    assert report.arms[-1].checkpoint_bytes == record.total_bytes
    assert report.arms[-1].weight_bytes == record.weight_bytes
    assert not (stage.folder / ".partial" / "evaluate").exists()


def test_what_ran_is_what_each_arm_asks_for(stage):
    stage.export(mixed(stage), kv_cache="fp8")
    ran = stage.run().runtimes
    assert {name: one.kv_cache for name, one in ran.items()} == dict.fromkeys(ran, "fp8") | {"bf16": "bf16"}
    assert {one.kernels for one in ran.values()} == {"native" if extension() else "reference"}
    kinds = {name: {linears.stored for linears in one.linears} for name, one in ran.items()}
    uniform = {"fp8": {"bf16", "fp8"}, "nvfp4": {"bf16", "nvfp4"}}
    assert kinds == {"bf16": {"bf16"}, "plan": {"bf16", "fp8", "nvfp4"}} | uniform
    for one in ran.values():
        assert all(linears.asked == linears.reads for linears in one.linears)
    groups = Assignment.load(stage.folder).groups
    names = {group.name: len(group.linears) for group in stage.rounded.model_map.groups}
    counted = {linears.stored: linears.count for linears in ran["plan"].linears}
    for precision in ("fp8", "nvfp4"):
        assert counted[precision] == sum(names[group] for group, p in groups.items() if p == precision)


def test_how_fast_each_arm_was_is_beside_the_report(stage):
    stage.export(stage.rounded.plan("fp8"))
    stage.run(section=SECTION.model_copy(update={"arms": ["bf16", "plan"]}))
    lines = [json.loads(line) for line in (stage.folder / "timings.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == [
        "evaluate: bf16, text",
        "evaluate: plan, text",
        "evaluate: plan, kl",
    ]
    pages = Transcripts.load(stage.folder).pages
    assert lines[1]["num_tokens"] == sum(page.arms["plan"].num_tokens for page in pages)
    assert lines[2]["num_tokens"] == sum(page.arms["plan"].num_kl_tokens for page in pages)
    assert all(line["num_pages"] == len(pages) and line["tokens_per_s"] > 0 for line in lines)


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_the_checkpoint_computes_what_the_rounded_weights_do(stage, precision):
    stage.export(stage.rounded.plan(precision), kv_cache="fp8")
    stage.run(section=SECTION.model_copy(update={"arms": ["bf16", precision, "plan"]}))
    for page in Transcripts.load(stage.folder).pages:
        assert page.arms[precision] == page.arms["plan"]
        assert page.arms["plan"].kl_sum > 0


def test_a_plan_of_bf16_is_the_source_itself(stage):
    stage.export(stage.rounded.plan("bf16"))
    stage.run(section=SECTION.model_copy(update={"arms": ["bf16", "plan"]}))
    for page in Transcripts.load(stage.folder).pages:
        assert page.arms["plan"] == page.arms["bf16"]


def test_planted_corruption_fails_the_gate_after_the_report_is_written(stage):
    stage.export(stage.rounded.plan("fp8"))
    section = SECTION.model_copy(update={"arms": ["bf16", "plan"]})
    sound = stage.run(section=section).arms[-1].overall.mean_kl
    gate = GateSection(max_kl=2 * sound)
    stage.run(section=section, gate=gate, key=1)

    path = next((stage.folder / "checkpoint").glob("*.safetensors"))
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("layers.0.mlp.down_proj.weight_scale"))
    tensors[name] = tensors[name] * 8
    save_file(tensors, path)
    record = CheckpointRecord.load(stage.folder)
    contents = CheckpointRecord.scan(stage.folder / "checkpoint")
    record.model_copy(update={"contents": contents}).save(stage.folder)
    (stage.folder / "report.html").unlink()
    with pytest.raises(GateError, match="gate: max_kl: expected at most"):
        stage.run(section=section, gate=gate, key=1)
    assert not Report.load(stage.folder).is_passed
    assert "Gate failed" in (stage.folder / "report.html").read_text()
    with pytest.raises(GateError):  # nothing to do any more, and still no pass
        stage.run(section=section, gate=gate, key=1)


def test_a_checkpoint_that_is_not_the_recorded_one_is_refused(stage):
    stage.export(stage.rounded.plan("fp8"))
    path = next((stage.folder / "checkpoint").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ArtifactError, match=r"safetensors: expected SHA-256"):
        stage.run()


@pytest.mark.parametrize("num_passes", [1, 4, 11])
def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(stage, steps, monkeypatch, num_passes):
    stage.export(mixed(stage))
    stage.run()
    expected = stage.contents()
    for name in FILES:
        (stage.folder / name).unlink()

    def stop(original):
        def call(*args, **options):
            if len(steps) == num_passes:
                raise KeyboardInterrupt
            return original(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for kind, method in ((Engine, "run_until_done"), (Scorer, "score")):
            patch.setattr(kind, method, stop(getattr(kind, method)))
        steps.clear()
        with pytest.raises(KeyboardInterrupt):
            stage.run()
    assert not (stage.folder / "report.json").exists()
    done = steps.count("text")

    steps.clear()
    stage.run()
    assert stage.contents() == expected
    assert steps.count("text") == 4 * 2 - done


def test_another_gate_or_margin_runs_no_model(stage, steps):
    stage.export(stage.rounded.plan("fp8"))
    section = SECTION.model_copy(update={"arms": ["bf16", "plan"]})
    stage.run(section=section)
    assert steps
    steps.clear()
    margin = EquivalenceSection(cer_margin=0.01)
    more = section.model_copy(update={"num_bootstrap_samples": 300, "equivalence": margin})
    report = stage.run(section=more, gate=GateSection(max_kl=100), key=1)
    assert report.num_bootstrap_samples == 300
    assert len(report.gate) == 2
    assert report.equivalence.outcome == "unsettled"  # a handful of documents
    assert not steps
    longer = section.model_copy(update={"max_new_tokens": 7})
    stage.run(section=longer, key=2)
    assert steps


def test_numbers_of_other_kernels_are_not_continued(stage, steps, monkeypatch):
    stage.export(stage.rounded.plan("fp8"))
    section = SECTION.model_copy(update={"arms": ["bf16", "plan"]})
    with monkeypatch.context() as patch:
        patch.setattr("ocrquant.evaluate.stage.RunFolder.save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stage.run(section=section)
    steps.clear()
    monkeypatch.setenv("OCRQUANT_KERNELS", "reference")
    ran = stage.run(section=section).runtimes
    assert {one.kernels for one in ran.values()} == {"reference"}
    assert steps.count("text") == (2 * 2 if extension() else 0)


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_model_that_the_runtime_lacks_runs_in_transformers(stage, steps, monkeypatch):
    """Both ways read the same exported folder: they agree up to the rounding of bf16."""
    stage.export(mixed(stage), kv_cache="fp8")
    ours = stage.run()
    monkeypatch.setattr("ocrquant.models.registry.FAMILIES", {"Another": ""})
    for name in FILES:
        (stage.folder / name).unlink()
    steps.clear()
    simulated = stage.run()
    assert not steps
    assert {one.kernels for one in simulated.runtimes.values()} == {"simulated"}
    for name, ran in simulated.runtimes.items():
        assert ran.kv_cache == ours.runtimes[name].kv_cache
        searched = {record.stored: record.count for record in ran.linears}
        on_runtime = {record.stored: record.count for record in ours.runtimes[name].linears}
        for precision in ("fp8", "nvfp4"):
            assert searched.get(precision) == on_runtime.get(precision)
    for one, other in zip(ours.arms[1:], simulated.arms[1:], strict=True):
        assert 0.8 < one.overall.mean_kl / other.overall.mean_kl < 1.25
    assert "modules in transformers" in (stage.folder / "report.md").read_text()
