import pytest

from ocrquant.artifacts import GroupRecord
from ocrquant.evaluate.places import Place, PlaceGrid, place_of


def group(name, kind, block=None):
    return GroupRecord(
        name=name,
        kind=kind,
        block=block,
        linears=[name],
        shapes=[(16, 16)],
        num_weights=256,
        precisions=["bf16", "fp8"],
    )


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


def test_grid_has_a_row_a_kind_and_a_column_a_block_and_one_for_the_rest():
    groups = [group("head", "lm_head")]
    inside = [(0, "a"), (10, "b"), (10, "a"), (2, "a")]
    groups += [group(f"group-{i}", kind, block) for i, (block, kind) in enumerate(inside)]
    grid = PlaceGrid(groups)
    assert grid.roles == ["a", "b", "lm_head"]
    assert grid.columns == ["0", "2", "10", ""]
    assert grid.cell("group-1") == (1, 2)
    assert grid.cell("head") == (2, 3)


def test_groups_of_one_kind_in_one_block_have_rows_of_their_own():
    groups = [group(f"layers.0.experts.{i}.up", "expert.up", 0) for i in range(2)]
    grid = PlaceGrid([*groups, group("layers.0.mlp.up", "mlp.up", 0)])
    assert grid.roles == ["experts.0.up", "experts.1.up", "mlp.up"]
    assert len({grid.cell(g.name) for g in groups}) == 2


def test_grid_without_groups_outside_has_no_column_for_them():
    assert PlaceGrid([group("x", "a", 0)]).columns == ["0"]
