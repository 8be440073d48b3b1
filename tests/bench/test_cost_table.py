"""The cost table of the shipped model, small and quick, and a plan that is made with it."""

import json

import pytest

from ocrquant.adapters import model_folder, read_model_map
from ocrquant.bench.cost_table import _unsteady
from ocrquant.bench.run import run_benchmark
from ocrquant.cost import CostEntry, CostTable, Load, StepCost
from ocrquant.errors import RecipeError
from ocrquant.formats import Precision


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    run_benchmark("cost-table", ["probe_bytes=65536", "rows=[1, 4]"], repeats=2, out=path)
    return path


def test_every_group_of_the_model_has_a_time_in_every_format(file):
    table = CostTable.load(file)
    assert {entry.rows for entry in table.products} == {1, 4}
    cost = StepCost(table, Load(batch=2, window=2))
    for group in read_model_map(model_folder("pico")).groups:
        shapes = [(linear.out_features, linear.in_features) for linear in group.linears]
        for precision in Precision:
            assert cost.group_ns(shapes, precision) > 0


def test_the_file_says_what_it_was_measured_on(file):
    data = json.loads(file.read_text())
    table = CostTable.load(file)
    assert table.source == f"measured on {table.machine}, {data['machine']['date']}"
    assert data["machine"]["processor"] in table.machine
    assert all(entry.low_us <= entry.us <= entry.high_us for entry in table.products)
    assert data["repeats_note"].startswith("too few")


def test_unsteady_times_are_said():
    def entry(high_us):
        return CostEntry(
            out_features=1,
            in_features=1,
            precision="bf16",
            rows=1,
            us=1.2,
            low_us=1,
            high_us=high_us,
            repeats=12,
        )

    assert _unsteady([entry(1.4)]) == []
    assert _unsteady([entry(1.4), entry(1.6)]) == [
        "1 of 2 times vary by more than half: measure again on a quiet machine"
    ]


def test_more_rows_than_were_measured_are_refused(file):
    cost = StepCost(CostTable.load(file), Load(batch=8))
    with pytest.raises(RecipeError, match=r"in bf16 at 8 rows, got times at 1, 4 rows"):
        cost.group_ns([(192, 256)], Precision.BF16)
