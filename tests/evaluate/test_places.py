import pytest

from ocrquant.evaluate.places import Place, PlaceGrid, place_of


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("layers.3.mlp.down", Place(3, "mlp.down")),
        ("model.language_model.layers.12.mlp.gate_proj", Place(12, "mlp.gate_proj")),
        ("lm_head", Place(None, "lm_head")),
        ("model.head", Place(None, "head")),
        ("players.1.x", Place(None, "x")),
    ],
)
def test_place_of(name, place):
    assert place_of(name) == place


def test_grid_has_a_row_a_role_and_a_column_a_layer_and_one_for_the_rest():
    grid = PlaceGrid(["lm_head", "layers.0.a", "layers.10.b", "layers.10.a", "layers.2.a"])
    assert grid.roles == ["a", "b", "lm_head"]
    assert grid.columns == ["0", "2", "10", ""]
    assert grid.cell("layers.10.b") == (1, 2)
    assert grid.cell("lm_head") == (2, 3)


def test_grid_without_groups_outside_has_no_column_for_them():
    assert PlaceGrid(["layers.0.a"]).columns == ["0"]
