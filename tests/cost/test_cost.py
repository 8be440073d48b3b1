"""Times by hand: rooflines, tables, products of merged linears, keys and values."""

import json

import pytest

from ocrquant.cost import TARGETS, CostEntry, CostTable, Load, StepCost, kv_bytes, products
from ocrquant.errors import ArtifactError, RecipeError
from ocrquant.formats import Precision
from ocrquant.recipe.sections import TargetSection

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4


def entry(us, rows, precision=BF16, shape=(32, 16)):
    return CostEntry(
        out_features=shape[0],
        in_features=shape[1],
        precision=precision,
        rows=rows,
        us=us,
        low_us=us,
        high_us=us,
        repeats=12,
    )


def table(*entries):
    return CostTable(machine="a machine", date="2026-01-01", read_bytes_per_s=1e9, products=list(entries))


def test_few_rows_take_the_time_to_read_the_weight():
    # 4096 * 4096 weights at 8 TB/s: 2 bytes, 1 byte and a scale of 4 a row, half a byte and a scale a block.
    b200 = TARGETS["b200"]
    num_weights = 4096 * 4096
    for precision, num_bytes in {
        BF16: 2 * num_weights,
        FP8: num_weights + 4 * 4096,
        NVFP4: num_weights // 2 + num_weights // 16 + 4,
    }.items():
        expected = num_bytes / 8e12 * 1e6 + 2.5
        assert b200.product_us(4096, 4096, precision, 1) == pytest.approx(expected)


def test_many_rows_take_the_time_to_compute():
    # 2 * 4096^2 * 4096 operations at 2.25, 4.5 and 9 PFLOP/s.
    operations = 2 * 4096**3
    for precision, peak in {BF16: 2.25e15, FP8: 4.5e15, NVFP4: 9e15}.items():
        expected = operations / peak * 1e6 + 2.5
        assert TARGETS["b200"].product_us(4096, 4096, precision, 4096) == pytest.approx(expected)


def test_a_format_without_arithmetic_saves_bytes_only():
    h200 = TARGETS["h200"]
    assert h200.product_us(4096, 4096, NVFP4, 1) < h200.product_us(4096, 4096, FP8, 1)
    assert h200.product_us(4096, 4096, NVFP4, 4096) == h200.product_us(4096, 4096, BF16, 4096)
    assert "h200 has no nvfp4 arithmetic" in h200.note(NVFP4)
    assert h200.note(FP8) == TARGETS["b200"].note(NVFP4) == ""


def test_every_target_has_a_name_in_recipes_and_says_who_stated_it():
    named = TargetSection.model_fields["device"].annotation
    assert set(TARGETS) == {
        name for choice in named.__args__ for name in getattr(choice, "__args__", ()) if name is not None
    }
    for name, target in TARGETS.items():
        assert target.source.startswith(f"roofline of {name} (")


def test_linears_of_one_width_are_one_product():
    assert products([(64, 16), (32, 16), (8, 24)]) == [(96, 16), (8, 24)]


def test_times_between_measured_rows_lie_on_a_line():
    found = table(entry(10, 1), entry(30, 5), entry(7, 1, FP8))
    assert found.product_us(32, 16, BF16, 1) == 10
    assert found.product_us(32, 16, BF16, 2) == 15
    assert found.product_us(32, 16, BF16, 5) == 30
    assert found.source == "measured on a machine, 2026-01-01"
    assert found.note(NVFP4) == ""


@pytest.mark.parametrize(
    ("shape", "precision", "rows", "message"),
    [
        ((32, 16), BF16, 6, r"times of \[32, 16\] in bf16 at 6 rows, got times at 1, 5 rows"),
        ((32, 16), NVFP4, 1, r"in nvfp4 at 1 rows, got none; ocrquant bench cost-table .*rows=\[1\]"),
        ((16, 32), BF16, 1, r"\[16, 32\] in bf16 at 1 rows, got none"),
    ],
)
def test_what_was_not_measured_is_not_guessed(shape, precision, rows, message):
    found = table(entry(10, 1), entry(30, 5))
    with pytest.raises(RecipeError, match=message):
        found.product_us(*shape, precision, rows)


def test_step_is_counted_in_nanoseconds_rounded_up():
    cost = StepCost(table(entry(1.0001, 6)), Load(batch=2, window=3, context=100))
    assert cost.group_ns([(16, 16), (16, 16)], BF16) == 1001
    # 2 requests of 100 tokens with 24 elements, at 1 byte a nanosecond: a speculative window reads them once.
    assert cost.kv_ns(24, BF16) == 2 * 100 * 24 * 2
    assert cost.kv_ns(24, FP8) == 2 * 100 * 24
    assert kv_bytes(24, 200, FP8) == 4800
    assert cost.words == ("2 requests, 3 rows each, context of 100 tokens, measured on a machine, 2026-01-01")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a cost table"),
        ('{"benchmark": "layer"}', "got another file"),
        ('{"benchmark": "cost-table"}', "the key results"),
        ('{"benchmark": "cost-table", "results": {"machine": 1}}', r"results\.machine"),
        ('{"benchmark": "cost-table", "results": 3}', r"results"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, text, message):
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=message) as caught:
        CostTable.load(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ArtifactError, match="missing"):
        CostTable.load(tmp_path / "missing.json")


def test_the_file_of_the_benchmark_is_read_back(tmp_path):
    path, written = tmp_path / "cost.json", table(entry(10, 1))
    path.write_text(json.dumps({"benchmark": "cost-table", "results": written.model_dump(mode="json")}))
    assert CostTable.load(path) == written
