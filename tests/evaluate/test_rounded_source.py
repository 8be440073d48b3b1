"""A plan in memory is tensor by tensor the checkpoint that an export of it would be."""

import json

import pytest
import torch

from ocrquant.checkpoint import CheckpointReader
from ocrquant.engine.source import CheckpointSource
from ocrquant.errors import ArtifactError
from ocrquant.evaluate.rounded_source import RoundedSource
from ocrquant.export import write_checkpoint
from ocrquant.formats.weights import weight_tensors
from tests.export.conftest import round_model


@pytest.fixture(scope="module")
def rounded(tiny_model_folder, tmp_path_factory):
    return round_model(tiny_model_folder, tmp_path_factory.mktemp("rounded"))


@pytest.mark.parametrize(
    "precisions", [("fp8",), ("nvfp4",), ("nvfp4", "bf16", "fp8"), ("bf16",)], ids="-".join
)
@pytest.mark.parametrize("cache", ["fp8", "bf16"])
def test_it_says_what_an_exported_checkpoint_holds(rounded, tmp_path, precisions, cache):
    groups, kv = rounded.plan(*precisions), rounded.rounding.kv if cache == "fp8" else ()
    with rounded.rounding.open_weights(rounded.run) as weights, CheckpointReader(rounded.source) as reader:
        write_checkpoint(
            rounded.source,
            tmp_path / "out",
            model_map=rounded.model_map,
            groups=groups,
            weights=weights,
            kv=kv,
            max_shard_bytes=1 << 30,
        )
        found = RoundedSource(reader, rounded.rounding, weights, groups, kv)
        config = json.loads((tmp_path / "out" / "config.json").read_bytes())
        with CheckpointSource(tmp_path / "out", config) as written:
            assert found.names() == written.names()
            assert found.num_parameters == written.num_parameters
            assert found.num_bytes == written.num_bytes - 8 * len(kv)  # scales of caches
            for name in sorted(found.names()):
                check(found, written, name)


def check(found, written, name):
    module, _, part = name.rpartition(".")
    if part in ("k_scale", "v_scale"):
        assert found.kv_scales(module) == written.kv_scales(module)
        return
    mine, theirs = found.quantized(module), written.quantized(module)
    assert (mine is None) == (theirs is None)
    scale, expected = found.input_encode_scale(module), written.input_encode_scale(module)
    assert scale == expected
    if mine is None:
        assert torch.equal(found.tensor(name), written.tensor(name))
        assert found.tensor(name).dtype == written.tensor(name).dtype
        return
    parts, wanted = weight_tensors(mine), weight_tensors(theirs)
    assert parts.keys() == wanted.keys()
    for key, tensor in parts.items():
        assert torch.equal(tensor.view(torch.uint8), wanted[key].view(torch.uint8)), (name, key)


def test_a_group_that_was_not_rounded_is_refused(rounded):
    lacking = rounded.rounding.model_copy(update={"groups": rounded.rounding.groups[1:]})
    first = rounded.rounding.groups[0]
    groups = {first.group: first.precision}
    with (
        rounded.rounding.open_weights(rounded.run) as weights,
        CheckpointReader(rounded.source) as reader,
        pytest.raises(ArtifactError, match=first.group),
    ):
        RoundedSource(reader, lacking, weights, groups)
