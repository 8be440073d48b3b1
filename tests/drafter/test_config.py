"""What a drafter's configuration may say, and the published rule of taps."""

import pytest
from pydantic import ValidationError

from ocrquant.adapters import model_folder
from ocrquant.checkpoint import CheckpointReader
from ocrquant.drafter.config import DFLASH2, DrafterConfig, default_taps
from ocrquant.drafter.target import read_ends
from ocrquant.errors import ModelError
from ocrquant.json_files import read_json
from ocrquant.models.drafter.target import EMBEDDINGS, target_digest
from tests.drafter.making import config, second


@pytest.mark.parametrize(
    ("num_layers", "count", "expected"),
    [(32, 5, (1, 8, 15, 22, 29)), (36, 5, (1, 9, 17, 25, 33)), (36, 1, (18,)), (8, 4, (1, 2, 4, 5))],
)
def test_taps_follow_the_published_rule(num_layers, count, expected):
    assert default_taps(num_layers, count) == expected


def test_round_trip(tmp_path):
    path = tmp_path / "config.json"
    for made in (
        config(),
        second(),
        config(layer_types=("full_attention", "sliding_attention"), sliding_window=9),
    ):
        path.write_text(made.render())
        assert DrafterConfig.read(path) == made


def test_the_second_one_keeps_the_sizes_of_the_first():
    made = second()
    assert made.architectures == (DFLASH2,)
    assert made.conv_kernel_size == 2
    assert made.hidden_size == config().hidden_size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ("full_attention",)}, "1 layer_types for 2 layers"),
        ({"target_layer_ids": (2, 0)}, "must rise"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"sliding_window": 8}, "belongs to sliding layers"),
        ({"layer_types": ("full_attention", "sliding_attention")}, "they need it"),
        ({"selector_rank": 4}, "states the sizes"),
        ({"architectures": (DFLASH2,)}, "states the sizes"),
        ({"mask_token_id": 12}, "token of the vocabulary"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        config(**changes)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match="config.json"):
        DrafterConfig.read(tmp_path / "config.json")


def test_the_engine_knows_a_target_by_the_same_digest():
    folder = model_folder("pico")
    with CheckpointReader(folder) as reader:
        name = next(name for name in EMBEDDINGS if name in reader.specs)
        found = target_digest(reader.read(name), read_json(folder / "config.json"))
    assert found == read_ends(folder).sha256
