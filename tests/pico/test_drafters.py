"""The drafters that ship: small, for pico and its plans, with what they reach beside them."""

import json

import pytest

from ocrquant.adapters import drafter_folder, model_folder
from ocrquant.drafter.config import DrafterConfig
from ocrquant.drafter.folder import load_drafter, require_target
from ocrquant.drafter.target import read_ends

NAMES = ["pico-dflash", "pico-dflash2"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_made_for_pico(name):
    folder = drafter_folder(name)
    model = load_drafter(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) <= 2_500_000
    require_target(model.config, read_ends(model_folder("pico")).sha256, "pico")
    assert (model.config.block_size, model.config.target_layer_ids) == (16, (1, 3, 5, 7))
    assert model.config.is_second == (name == "pico-dflash2")


@pytest.mark.parametrize("name", NAMES)
def test_what_it_reached_is_stated(name):
    folder = drafter_folder(name)
    found = json.loads((folder / "acceptance.json").read_text(encoding="utf-8"))
    assert found["block"]["selected"]["length"] >= found["block"]["unary"]["length"] - 0.01
    assert found["block"]["selected"]["length"] > 6


def test_the_second_one_has_the_sizes_of_the_first():
    first, second = (DrafterConfig.read(drafter_folder(name) / "config.json") for name in NAMES)
    sizes = {"rank": second.selector_rank, "top_k": second.selector_top_k}
    assert first.as_second(**sizes) == second
