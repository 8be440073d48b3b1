"""Which tensors hold all experts of a layer, and where each expert's weight lies in them."""

from __future__ import annotations

import pytest

from ocrquant.stacked_experts import StackedWeight, stacked_weights

PREFIX = "model.layers.0.mlp.experts"
SHAPES = {f"{PREFIX}.gate_up_proj": (2, 6, 5), f"{PREFIX}.down_proj": (2, 5, 3)}


def test_by_hand():
    found = stacked_weights({**SHAPES, "lm_head.weight": (7, 5)})
    assert list(found) == [
        f"{PREFIX}.{expert}.{part}.weight"
        for expert in range(2)
        for part in ("gate_proj", "up_proj", "down_proj")
    ]
    assert found[f"{PREFIX}.1.up_proj.weight"] == StackedWeight(
        PREFIX, f"{PREFIX}.gate_up_proj", expert=1, first=3, rows=3, columns=5
    )
    assert found[f"{PREFIX}.0.down_proj.weight"].shape == (5, 3)


def test_rows_and_columns_exchanged():
    found = stacked_weights({f"{PREFIX}.gate_up_proj": (2, 5, 6), f"{PREFIX}.down_proj": (2, 3, 5)})
    assert all(weight.is_turned for weight in found.values())
    assert found[f"{PREFIX}.1.up_proj.weight"].shape == (3, 5)
    assert found[f"{PREFIX}.1.down_proj.weight"].shape == (5, 3)


@pytest.mark.parametrize(
    "change",
    [
        {f"{PREFIX}.gate_up_proj": (2, 5, 6)},  # exchanged, and the other one is not
        {f"{PREFIX}.gate_up_proj": (3, 6, 5)},
        {f"{PREFIX}.gate_up_proj": (6, 5)},
        {f"{PREFIX}.down_proj": (5, 3)},
    ],
)
def test_shapes_that_do_not_belong_together(change):
    assert stacked_weights({**SHAPES, **change}) == {}


def test_one_without_the_other():
    assert stacked_weights({name: shape for name, shape in SHAPES.items() if "gate" in name}) == {}
