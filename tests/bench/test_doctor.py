"""What the doctor says of this machine and of GPUs that are not here."""

import json

import pytest
from typer.testing import CliRunner

from ocrquant.bench import doctor
from ocrquant.bench.doctor import examine
from ocrquant.cli import app
from ocrquant.kernels import libraries
from ocrquant.kernels.extension import extension, missing_reason
from ocrquant.kernels.matmul.arch import ARCHES
from ocrquant.kernels.matmul.table import FORMS, Product, choose

CLI = CliRunner()


def said(*arguments):
    result = CLI.invoke(app, ["doctor", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("arch", ARCHES)
def test_every_product_and_op_of_an_architecture(arch):
    found = examine(arch)
    assert arch in found["for"]
    # Plain rows times a quantized weight have a rule for few rows.
    assert len(found["products"]) == 2 * len(FORMS) + 2 * 2
    for entry in found["products"]:
        form, result = entry["product"].split(" -> ")
        result, _, few = result.partition(", ")
        product = Product(form, 4096, 4096, result == "float32", bool(few), form == "nvfp4 x nvfp4")
        rule = choose(product, ARCHES[arch])
        assert (entry["by"], entry["reason"]) == (rule.implementation, rule.reason)
        assert entry["takes"] == rule.takes
    ops = {entry["op"]: entry["by"] for entry in found["ops"]}
    assert ops["linear"] == "library"
    assert {"rms_norm", "silu_mul", "paged_attention", "replay", "sample"} <= set(ops)


def test_text_names_what_serves_and_what_does_not():
    hopper, blackwell = said("--arch", "sm_90a"), said("--arch", "sm_100a")
    assert "sm_90a has no nvfp4 matrix units" in hopper
    assert "H100, H200" in hopper
    assert "scaled_mm blocks" in blackwell
    assert "no nvfp4 matrix units" not in blackwell
    assert json.loads(said("--arch", "sm_100a", "--json")) == examine("sm_100a")


def test_without_a_gpu_the_table_is_that_of_the_cpu(monkeypatch):
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: False)
    found = examine()
    assert (found["for"], found["products"]) == ("CPU", [])
    by = {entry["by"] for entry in found["ops"]}
    assert by == ({"reference"} if extension() is None else {"native"})
    assert found["devices"]["gpu"].startswith("none")


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "not installed")
    ops = {entry["op"]: entry for entry in examine("sm_100a")["ops"]}
    assert ops["silu_mul"]["by"] == "reference"
    assert "ocrquant[cuda]" in ops["silu_mul"]["reason"]


def test_few_rows_have_lines_of_their_own_with_their_shapes(monkeypatch):
    name = "bf16 x nvfp4 -> bf16, 16 rows at most"
    lines = {entry["product"]: entry for entry in examine("sm_100a")["products"]}
    assert lines[name]["by"] == "decode"
    assert lines[name]["not_by"] == {"small_linear": "OCRQUANT_KERNELS is not cuda"}
    monkeypatch.setenv("OCRQUANT_KERNELS", "cuda")
    lines = {entry["product"]: entry for entry in examine("sm_100a")["products"]}
    assert lines[name]["by"] == "small_linear"
    assert lines[name]["takes"] == "inputs in multiples of 32, 16 rows at most"


def test_libraries_are_named_with_what_keeps_them_from_serving(monkeypatch):
    monkeypatch.setattr(libraries, "unusable", lambda name: f"{name} 0.1 is not >=1")
    text = said("--arch", "sm_100a")
    assert "not flashinfer mm_fp4: flashinfer 0.1 is not >=1" in text
    assert "not flashinfer bmm_fp8: flashinfer 0.1 is not >=1" in text
    assert "of one prompt by fla: fla 0.1 is not >=1" in text
    monkeypatch.setattr(libraries, "unusable", lambda name: "")
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "flashinfer,fla")
    text = said("--arch", "sm_100a")
    assert "of one prompt by fla: asked for" in text
    assert "asked for; a plan of cuDNN with swizzled" in text
    # A weight that this package exports in FP8 has a scale for every channel.
    assert "not flashinfer bmm_fp8: takes one scale a side" in text


def test_an_unknown_architecture_is_refused():
    result = CLI.invoke(app, ["doctor", "--arch", "sm_1"])
    assert result.exit_code == 25
    assert "sm_100a" in result.stderr


def test_a_missing_extension_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "extension", lambda: None)
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: False)
    found = examine()
    assert found["devices"]["native kernels"] == missing_reason()
    assert {entry["by"] for entry in found["ops"]} in ({"reference"}, {"native"})
