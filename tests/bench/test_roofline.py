"""The modelled table: what it shows, how it is asked for, and that its launches are those of the runtime."""

import json

import pytest
from typer.testing import CliRunner

from ocrquant.bench.roofline import Settings, run
from ocrquant.cli import app
from ocrquant.cost import ModelShape
from ocrquant.engine import RuntimeSettings, SamplingParams, load_runtime
from ocrquant.engine.prompt import text_prompt
from ocrquant.kernels.selection import count_launches

CLI = CliRunner()


def bench(*arguments: str) -> str:
    result = CLI.invoke(app, ["bench", "roofline", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_says_that_it_is_modelled_and_from_what():
    text = bench("--target", "b200")
    assert text.startswith("MODELLED for b200: NVIDIA HGX B200 data sheet")
    for words in ("qwen3.5-9b, requests at once: 32", "285 -> 2800 tokens/s", "binds", "nothing here was"):
        assert words in text


def test_json_holds_every_number_of_the_table(tmp_path):
    path = tmp_path / "roofline.json"
    data = json.loads(bench("--target", "h200", "--context", "100", "--json", "--out", str(path)))
    assert data == json.loads(path.read_text())
    assert data["settings"]["context"] == 100
    assert data["results"]["modelled"] is True
    rows = data["results"]["rows"]
    assert len(rows) == 2 * 3 * 7
    for row in rows:
        assert row["step_ms"] == pytest.approx(sum(row["terms_us"].values()) / 1e3, rel=1e-4)
        assert row["binds"] == max(row["terms_us"], key=row["terms_us"].__getitem__)
    assert any("h200 has no nvfp4 arithmetic" in note for note in data["notes"])


def test_acceptance_is_a_number_or_a_measured_file(tmp_path):
    one = json.loads(bench("--acceptance", "6", "--json"))["results"]["rows"]
    assert {row["tokens_per_step"] for row in one if row["window"] > 1} == {6}
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"steps": 4, "accepted_by_position": [4, 2, 1]}))
    some = json.loads(bench("--acceptance", str(path), "--json"))["results"]["rows"]
    assert {(row["window"], row["tokens_per_step"]) for row in some if row["window"] > 1} == {(4, 2.75)}
    assert any("measured" in row["arm"] for row in some)


def test_what_is_out_of_range_is_refused():
    for arguments, code in (
        (("--acceptance", "17"), 10),
        (("--acceptance", "missing.json"), 26),
        (("--target", "abacus"), 10),
        (("--repeats", "12"), 10),
    ):
        assert CLI.invoke(app, ["bench", "roofline", *arguments]).exit_code == code


def test_the_best_window_falls_as_the_batch_grows():
    rows = run(Settings(models=("qwen3.5-9b",), requests=(1, 32), acceptance=4.0), 1).results["rows"]
    best = {row["requests"]: row["best"] for row in rows if row["arm"].endswith("native")}
    assert best[1] > best[32] > 1


@pytest.mark.parametrize("state", ["native", "replay"])
def test_launches_are_those_of_the_runtime(tiny_model_folder, state):
    runtime = load_runtime(tiny_model_folder, RuntimeSettings(max_requests=2, max_length=64, state=state))
    engine = runtime.engine
    for _ in range(2):
        prompt = text_prompt([1, 2, 3], engine.config.position_axes)
        engine.submit(prompt, SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    with count_launches() as counted:
        engine.step()
    shape = ModelShape(name="tiny", hidden=64, intermediate=128, num_layers=4, num_attention=1)
    assert sum(counted.values()) == shape.launches(replay=state == "replay"), counted
