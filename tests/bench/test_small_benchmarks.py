"""Metadata, states, vision and workers on small sizes."""

import pytest
import torch

from ocrquant.bench.state import _moved
from ocrquant.engine.state import NativePool, ReplayPool, SnapshotPool
from ocrquant.models.spec import StateSpec
from tests.bench.running import is_estimate, result_of


def test_metadata_of_every_number_of_requests(capsys):
    data = result_of(capsys, "metadata", "requests=[2, 3]")
    assert data["results"]["groups"] == 38
    for count in (2, 3):
        found = data["results"][f"{count} requests"]
        assert all(is_estimate(found[key]) for key in ("three_objects_us", "by_group_us", "times_longer"))


def test_states_of_every_number_of_requests_and_drift(capsys):
    small = ("requests=[2]", "window=4", "steps=3", "key_heads=1", "value_heads=2", "head_dim=32")
    data = result_of(capsys, "state", *small, "drift_tokens=40", "probe_bytes=65536")
    found = data["results"]["2 requests"]
    assert is_estimate(found["snapshot over native"])
    assert is_estimate(found["snapshot over replay"])
    for arm in ("snapshot", "native", "replay"):
        assert is_estimate(found[arm]["seconds"])
        assert is_estimate(found[arm]["bytes_per_s"])
    state = 2 * 32 * 32 * 4
    assert found["snapshot"]["bytes_per_step"] == 2 * state * (1 + 4 + 2)
    for arm in ("native", "replay"):
        assert state * 2 < found[arm]["bytes_per_step"] < found["snapshot"]["bytes_per_step"]
    assert [row["form"] for row in data["results"]["drift"]] == ["plain fp32", "replay fp32", "replay bf16"]


def test_bytes_of_records_by_hand():
    spec = StateSpec(num_layers=1, key_heads=1, value_heads=2, key_dim=8, value_dim=4, conv_taps=4)
    state, record = 2 * 8 * 4 * 4, (2 * 4 + 8 + 2) * 4
    pool = ReplayPool(spec, num_slots=3, max_rows=8, window=4)
    accepted = torch.ones(2, dtype=torch.int32)
    assert _moved(pool, accepted) == 2 * (state + 4 * record)
    pool.cursors.write_pos[:] = torch.tensor([5, 2, 9])
    pool.cursors.flush[:] = torch.tensor([1, 0, 1])
    assert _moved(pool, accepted) == 2 * (state + 4 * record) + 7 * record + state
    assert _moved(SnapshotPool(spec, num_slots=3, max_rows=8, window=4), accepted) == 2 * state * 7
    # The state is read, then read and written where rows are done again; four rows noted, some read.
    noted, native = 2 * (8 + 4 + 1) * 4, NativePool(spec, num_slots=3, max_rows=8, window=4)
    some = torch.tensor([1, 3], dtype=torch.int32)
    assert _moved(native, some) == 2 * (3 * state + 4 * noted) + 4 * noted


@pytest.mark.parametrize("crops", [3])
def test_packed_images_are_measured_and_equal(capsys, tiny_model_folder, crops):
    small = (f"crops={crops}", "packed=[2]", "probe_bytes=65536", f"model={tiny_model_folder}")
    found = result_of(capsys, "vision", *small)["results"]
    for arm in ("one by one", "packed 2"):
        assert found[arm]["bits_equal"] is True
        assert is_estimate(found[arm]["seconds_per_crop"])
        assert is_estimate(found[arm]["speedup"])


def test_every_number_of_workers_reads_the_same(capsys, tiny_model_folder):
    small = ("crops=3", "workers=[0, 1]", "max_tokens=3", "max_requests=2", f"model={tiny_model_folder}")
    found = result_of(capsys, "workers", *small)["results"]
    assert found["default_workers"] in (0, 1, 2)
    for arm in ("0 workers", "1 workers"):
        assert found[arm]["texts_equal"] is True
        assert found[arm]["prepare_seconds_per_page"] > 0
        assert is_estimate(found[arm]["pages_per_s"])
        assert is_estimate(found[arm]["faster than 0 workers"])
