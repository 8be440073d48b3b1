"""Every family from check to the report, in every format that can be written."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors import safe_open

from ocrquant.adapters import read_model_map
from ocrquant.artifacts import Assignment, Report, Statistics
from ocrquant.checkpoint import CheckpointReader
from ocrquant.formats import Precision
from ocrquant.models.registry import FAMILIES as ON_THE_RUNTIME
from tests.families.making import TINY
from tests.families.whole_way import FORMATS, go_the_whole_way


@pytest.fixture(scope="module", params=list(TINY))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def runs(name, family_folder, tmp_path_factory):
    """One run a format; what does not depend on the format is made once."""
    patch = pytest.MonkeyPatch()
    patch.setattr("ocrquant.evaluate.report.render_html", lambda material: "")  # drawing is tested elsewhere
    folder = tmp_path_factory.mktemp(name)
    found = {}
    for number, kind in enumerate(FORMATS):
        export = {"kv_cache": "fp8", "format": kind}
        run = go_the_whole_way(family_folder(name), folder, adopt=number > 0, export=export)
        found[kind] = shutil.copytree(run, folder / kind)
    patch.undo()
    return found


def tensors(folder):
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            found |= {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("kind", FORMATS)
def test_the_report_judges_what_was_written(name, runs, kind):
    report = Report.load(runs[kind])
    assert [arm.name for arm in report.arms] == ["bf16", "fp8", "nvfp4", "plan"]
    fp8, nvfp4, plan = (arm.overall.mean_kl for arm in report.arms[1:])
    assert 0 < fp8 < nvfp4
    assert 0 < plan < nvfp4
    architecture = TINY[name].architecture
    assert (report.runtimes["plan"].kernels == "simulated") == (architecture not in ON_THE_RUNTIME)
    assert {record.stored for record in report.runtimes["plan"].linears} > {Precision.FP8}
    assert report.runtimes["plan"].kv_cache == "fp8"


@pytest.mark.parametrize("kind", FORMATS)
def test_only_planned_linears_change(name, runs, kind, family_folder):
    written = tensors(runs[kind] / "checkpoint")
    with CheckpointReader(family_folder(name)) as reader:
        stacks = {weight.stack for weight in reader.stacked.values()}
        source = {key: reader.read(key) for key in (*reader.specs, *reader.stacked) if key not in stacks}
    found = read_model_map(family_folder(name))
    groups = Assignment.load(runs[kind]).groups
    quantized = {
        linear.name
        for group in found.groups
        if groups[group.name] is not Precision.BF16
        for linear in group.linears
    }
    assert quantized
    norms = {fold.norm for fold in found.norm_folds} | {x for fold in found.norm_folds for x in fold.linears}
    for key, tensor in source.items():
        module = key.rpartition(".")[0]
        if module in quantized and key.endswith(".weight"):
            parts = [other for other in written if other.startswith(f"{module}.")]
            assert len(parts) > 1
        elif module not in norms:
            assert torch.equal(written[key], tensor), key
    modules = {key.rpartition(".")[0] for key in source}
    assert {key.rpartition(".")[0] for key in written} <= modules | {*found.kv_attention}


def test_pages_are_seen_with_their_images(runs):
    statistics = Statistics.load(runs[FORMATS[0]])
    inside = [linear for linear in statistics.linears if not linear.name.endswith("lm_head")]
    assert all(linear.image.num_tokens > 0 for linear in inside)
    for layer in statistics.experts:
        assert sum(layer.num_tokens) > 0


def test_a_folder_names_what_it_holds(runs):
    for kind, run in runs.items():
        config = json.loads((run / "checkpoint" / "config.json").read_text())["quantization_config"]
        assert config["quant_method"] == kind
