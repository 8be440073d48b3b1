"""A drafter for the checkpoint of a run: made once, gone on with, made anew where its inputs change."""

import json
import subprocess
import sys

import pytest

from ocrquant.drafter.config import DrafterConfig
from ocrquant.drafter.store import FeatureFolder
from ocrquant.errors import ArtifactError, PagesError, RecipeError
from ocrquant.pipeline import run_recipe
from ocrquant.pipeline.drafter import train_drafter
from ocrquant.recipe import load_recipe

DRAFTER = {
    "num_layers": 1,
    "intermediate_size": 64,
    "taps": [1, 7],
    "block_size": 4,
    "selector_rank": 8,
    "pages": {"num_pages": 6, "num_heldout_pages": 2},
    "training": {"num_steps": 3, "num_second_steps": 2},
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The run folder of pico at 6.5 bits, up to its checkpoint; and its recipe."""
    import yaml

    folder = tmp_path_factory.mktemp("drafter")
    recipe = {
        "model": {"path": "pico"},
        "pages": {
            "source": "calibration_data",
            "num_calibration_pages": 4,
            "num_heldout_pages": 2,
            "kinds": ["line"],
        },
        "sensitivity": {"score": "gradient", "candidates": ["fp8"], "num_pages": 2},
        "weights": {"smoothing": False, "scale_search": False, "gptq": False},
        "assign": {"budget": {"bits_per_weight": 9.0}},
        "evaluate": {"max_new_tokens": 200},
        "drafter": DRAFTER,
        "output": str(folder / "run"),
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    run_recipe(load_recipe(path), until="export")
    return path


def dated(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*.safetensors"))}


def test_both_drafters_are_made_once(exported, capsys):
    recipe = load_recipe(exported)
    found = train_drafter(recipe)
    assert found.name == "dflash2"
    config = DrafterConfig.read(found / "config.json")
    assert (config.is_second, config.block_size, config.target_layer_ids) == (True, 4, (1, 7))
    # Pico has a token of videos, which no answer holds.
    assert config.mask_token_id == 8
    first = DrafterConfig.read(found.parent / "dflash" / "config.json")
    assert not first.is_second
    acceptance = json.loads((found / "acceptance.json").read_text(encoding="utf-8"))
    for way in ("unary", "selected"):
        record = acceptance["line"][way]
        survival = record["survival"]
        assert len(survival) == 3
        # Of what one verification emits all but the target's own token are drafts that survived.
        assert record["length"] == pytest.approx(1 + sum(survival), abs=0.02)
    features = FeatureFolder(found.parent / "features" / "calibration")
    assert 0 < len(features) <= 6
    before = dated(found.parent)
    capsys.readouterr()
    assert train_drafter(recipe) == found
    assert dated(found.parent) == before
    assert capsys.readouterr().err.count("up to date") == 3


def test_another_schedule_keeps_the_features(exported):
    found = train_drafter(load_recipe(exported))
    before = dated(found.parent)
    changed = load_recipe(exported, ["drafter.training.num_second_steps=1"])
    train_drafter(changed)
    after = dated(found.parent)
    redone = {path.relative_to(found.parent).parts[0] for path in before if before[path] != after.get(path)}
    assert redone == {"dflash2", "training"}
    log = (found.parent / "training" / "dflash2" / "log.jsonl").read_text(encoding="utf-8")
    assert json.loads(log.splitlines()[-1])["step"] == 1


def test_two_processes_share_pages_and_steps(exported, tmp_path):
    output = tmp_path / "run"
    import shutil

    shutil.copytree(load_recipe(exported).output, output, ignore=shutil.ignore_patterns("drafter", ".lock"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "ocrquant", "drafter", "train", str(exported), "--set", f"output={output}"]
    # Every batch is one page, so that there is one for each process.
    command += ["--set", "drafter.training.max_rows=1"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    assert DrafterConfig.read(output / "drafter" / "dflash2" / "config.json").is_second
    assert process.stderr.count("dflash      tokens a step") == 1


def test_without_a_checkpoint_it_says_what_to_run(exported, tmp_path):
    with pytest.raises(ArtifactError, match="run ocrquant export"):
        train_drafter(load_recipe(exported, [f"output={tmp_path / 'empty'}"]))


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("drafter.taps=[1, 8]", "layers 0 to 7"),
        ("drafter.mask_token_id=320", "token of the vocabulary"),
    ],
)
def test_what_the_target_lacks_is_refused(exported, override, text):
    with pytest.raises(RecipeError, match=text):
        train_drafter(load_recipe(exported, [override]))


def test_answers_that_are_all_cut_short_teach_nothing(exported):
    # One token is no whole answer.
    with pytest.raises(PagesError, match="whole answers"):
        train_drafter(load_recipe(exported, ["evaluate.max_new_tokens=1"]), adopt=True)
