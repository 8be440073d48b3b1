"""The layer benchmark on small linears."""

from ocrquant.bench.layer import Settings, layer_linears
from tests.bench.running import is_estimate, result_of


def test_sizes_are_those_of_the_published_model():
    gdn = layer_linears(Settings(), "gdn")
    assert gdn == {
        "qkvz": (12288, 4096),
        "out": (4096, 4096),
        "gate_up": (24576, 4096),
        "down": (4096, 12288),
    }
    assert layer_linears(Settings(), "attention")["qkv"] == (10240, 4096)


def test_every_arm_has_its_numbers(capsys):
    small = ("hidden=64", "intermediate=128", "heads=1", "kv_heads=1", "key_heads=1", "value_heads=1")
    data = result_of(capsys, "layer", *small, "threads=[1]", "rows=[1, 8]", "probe_bytes=65536", repeats=2)
    assert set(data["results"]) == {
        f"{kind}, {n} rows, 1 threads" for kind in ("gdn", "attention") for n in (1, 8)
    }
    for found in data["results"].values():
        assert is_estimate(found["read_bytes_per_s"])
        for arm in ("bf16", "fp8", "fp8_plain", "nvfp4", "nvfp4_plain"):
            for key in ("seconds", "bytes_per_s", "share_of_bandwidth", "speedup", "speedup_over_torch_fp32"):
                assert is_estimate(found[arm][key]), (arm, key)
        sizes = [found[arm]["packed_bytes"] for arm in ("bf16", "fp8", "nvfp4")]
        assert sizes == sorted(sizes, reverse=True)
    # Two products of speed and one of bandwidth for each format at one row, speed alone at eight.
    assert len(data["goals"]) == 2 * (4 + 2)
    assert {goal["verdict"] for goal in data["goals"]} == {"too few repeats: 2 of 12"}
