"""What is found in checkpoints that other programs write for tiny models, made here by those programs."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ocrquant.verify import Findings, verify_checkpoint
from tests.families.making import make_folder

KEPT = ("*visual*", "*projector*", "*lm_head*", "*in_proj_a*", "*in_proj_b*")
RESAVED = {"processor-missing", "file-missing", "file-changed"}
"""Neither program copies the image processor, and both write the tokenizer anew."""


@pytest.fixture(scope="session")
def sources(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made = {"qwen3_5": tiny_model_folder}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_folder(name, tmp_path_factory.mktemp(name) / "model")
        return made[name]

    return folder


def load(source: Path, *, dead: str = ""):
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    model = AutoModelForImageTextToText.from_pretrained(source, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if dead and name.endswith(dead):
            parameter.data.zero_()
    return model, AutoTokenizer.from_pretrained(source)


def ids() -> torch.Tensor:
    return torch.randint(4, 60, (4, 32), generator=torch.Generator().manual_seed(0))


def by_modelopt(source: Path, out: Path, scheme: str, *, dead: str = "") -> Findings:
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    model, words = load(source, dead=dead)
    settings = copy.deepcopy(getattr(mtq, scheme))
    settings["quant_cfg"] += [{"quantizer_name": pattern, "enable": False} for pattern in KEPT]
    mtq.quantize(model, settings, forward_loop=lambda model: model(input_ids=ids()))
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=str(out))
    words.save_pretrained(out)
    return verify_checkpoint(out, source=source)


def by_llm_compressor(source: Path, out: Path, scheme: str) -> Findings:
    pytest.importorskip("llmcompressor", reason="llm-compressor is not installed")
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    model, words = load(source)
    rows = ids()
    data = Dataset.from_dict({"input_ids": rows.tolist(), "attention_mask": torch.ones_like(rows).tolist()})
    ignore = ["lm_head", "re:.*visual.*", "re:.*projector.*", "re:.*in_proj_[ab]$"]
    recipe = QuantizationModifier(targets="Linear", scheme=scheme, ignore=ignore)
    oneshot(
        model=model, dataset=data, recipe=recipe, num_calibration_samples=4, processor=words, pipeline="basic"
    )
    model.save_pretrained(out, save_compressed=True)
    words.save_pretrained(out)
    return verify_checkpoint(out, source=source)


def errors_of_weights(findings: Findings) -> set[str]:
    return findings.codes() - RESAVED


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "paddleocr_vl"])
def test_nvfp4_of_modelopt(sources, tmp_path, family):
    findings = by_modelopt(sources(family), tmp_path / "out", "NVFP4_DEFAULT_CFG")
    assert errors_of_weights(findings) == set()
    assert findings.codes() >= {"processor-missing", "file-missing"}
    assert "median 0.09" in findings.facts["relative error of nvfp4 weights"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "paddleocr_vl"])
def test_fp8_of_modelopt_rounds_fused_weights_twice(sources, tmp_path, family):
    findings = by_modelopt(sources(family), tmp_path / "out", "FP8_DEFAULT_CFG")
    assert errors_of_weights(findings) == {"tensor-scales-differ"}


@pytest.mark.slow
def test_a_dead_layer_of_modelopt_is_found(sources, tmp_path):
    dead = "layers.0.mlp.down_proj.weight"
    findings = by_modelopt(sources("qwen3_5"), tmp_path / "out", "NVFP4_DEFAULT_CFG", dead=dead)
    named = {item.what for item in findings.items if item.code == "scale-not-finite"}
    assert named == {f"model.language_model.{dead}_scale"}
    assert {"scale-not-positive", "codes-not-finite"} <= findings.codes()


@pytest.mark.slow
def test_nvfp4_of_llm_compressor(sources, tmp_path):
    findings = by_llm_compressor(sources("qwen3_5"), tmp_path / "out", "NVFP4")
    assert errors_of_weights(findings) == {"global-scales-differ", "vision-name-not-covered"}
    apart = {item.what.split(".")[-2] for item in findings.items if item.code == "global-scales-differ"}
    assert apart == {"in_proj_qkv"}


@pytest.mark.slow
def test_fp8_of_llm_compressor(sources, tmp_path):
    findings = by_llm_compressor(sources("qwen3_5"), tmp_path / "out", "FP8_DYNAMIC")
    assert errors_of_weights(findings) == {"vision-name-not-covered"}


@pytest.mark.slow
def test_the_vision_side_of_paddleocr_by_llm_compressor(sources, tmp_path):
    findings = by_llm_compressor(sources("paddleocr_vl"), tmp_path / "out", "NVFP4")
    assert errors_of_weights(findings) == {"name-matched-wrongly", "vision-name-not-covered"}


def test_names_as_llm_compressor_ignores_them(copy, check):
    """Class names as targets and full names in the ignore list, planted into a checkpoint of this package."""
    planted = copy("fp8")
    linears = sorted(name.removesuffix(".weight") for name in names_of_plain_linears(planted.folder))

    def rewrite(config):
        said = config["quantization_config"]
        # The head of a server is no linear by its class.
        said["config_groups"]["group_0"]["targets"] = ["Linear", "re:.*lm_head$"]
        said["ignore"] = linears

    planted.json("config.json", rewrite)
    assert check(planted.folder).codes() == {"vision-name-not-covered"}


def names_of_plain_linears(folder: Path) -> list[str]:
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    return [
        name
        for name, tensor in tensors.items()
        if name.endswith(".weight")
        and tensor.dtype is torch.bfloat16
        and tensor.ndim == 2
        and "embed" not in name
    ]


def test_single_layers_of_a_fused_vision_product_are_not_matched_without_a_table(sources, tmp_path):
    """PaddleOCR-VL: the server fuses vision q, k and v, and looks for the name of the product."""
    from ocrquant.export import write_checkpoint
    from tests.export.conftest import round_model

    model = round_model(sources("paddleocr_vl"), tmp_path / "run")
    with model.rounding.open_weights(model.run) as weights:
        write_checkpoint(
            model.source,
            tmp_path / "out",
            model_map=model.model_map,
            groups=model.plan("nvfp4"),
            weights=weights,
            max_shard_bytes=10**9,
        )
    assert verify_checkpoint(tmp_path / "out", source=model.source).items == []
    foreign = tmp_path / "foreign"
    shutil.copytree(tmp_path / "out", foreign)
    config = json.loads((foreign / "config.json").read_text())
    said = config["quantization_config"]
    said["config_groups"]["group_0"]["targets"] = ["Linear"]
    said["ignore"] = [*model.model_map.vision_linears, "lm_head"]
    (foreign / "config.json").write_text(json.dumps(config))
    found = verify_checkpoint(foreign)
    wrong = {item.what for item in found.items if item.code == "name-matched-wrongly"}
    assert wrong
    assert all("self_attn.q_proj" in name or "self_attn.k_proj" in name for name in wrong)
