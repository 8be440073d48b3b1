import pytest

from ocrquant.artifacts import Assignment, Pareto, ParetoPoint
from ocrquant.errors import ArtifactError
from ocrquant.formats import Precision

GROUPS = {"model.layers.0.mlp.gate_proj+up_proj": "nvfp4", "true": "fp8", "lm_head": "bf16", "3: x": "fp8"}


def assignment(**changes):
    values = {
        "budget": {"bits_per_weight": 6.5},
        "score": "kl",
        "predicted_loss": 0.0125,
        "bits_per_weight": 6.43,
        "weight_bytes": 1000,
        "groups": GROUPS,
    }
    return Assignment(inputs={"sensitivity": "0" * 64}, **values | changes)


def test_round_trip(tmp_path):
    assignment().save(tmp_path)
    loaded = Assignment.load(tmp_path)
    assert loaded == assignment()
    assert list(loaded.groups) == list(GROUPS)
    assert loaded.groups["lm_head"] is Precision.BF16


def test_file_has_one_line_for_each_group_and_says_that_it_may_be_edited(tmp_path):
    text = assignment().save(tmp_path).read_text()
    assert text.startswith("# The precision of each group of linears. Edit a line")
    assert "\n  model.layers.0.mlp.gate_proj+up_proj: nvfp4\n" in text
    assert text.count("\n") == len(text.splitlines())
    assert len(text.split("groups:\n")[1].splitlines()) == len(GROUPS)


def test_long_names_stay_on_one_line(tmp_path):
    assert "  true" not in assignment().render()  # quoted: it would be read as a boolean
    name = "+".join(f"model.language_model.layers.11.self_attn.{part}_proj" for part in "qkv") * 3
    lines = assignment(groups={name: "fp8"}).render().splitlines()
    assert lines[-1] == f"  {name}: fp8"


def test_edited_line_is_read(tmp_path):
    path = assignment().save(tmp_path)
    path.write_text(path.read_text().replace("lm_head: bf16", "lm_head: fp8   # by hand"))
    assert Assignment.load(tmp_path).groups["lm_head"] is Precision.FP8


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lm_head: bf16", "lm_head: fp4", r"assignment\.yaml: groups\.lm_head: expected .*got 'fp4'"),
        ("lm_head: bf16", "lm_head: bf16\n  lm_head: fp8", "the key 'lm_head' twice"),
        ("lm_head: bf16", "lm_head bf16", "assignment.yaml"),
        ("bits_per_weight: 6.5", "bits: 6.5", r"budget\.bits"),
    ],
)
def test_mistake_of_an_edit_is_named(tmp_path, old, new, message):
    path = assignment().save(tmp_path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ArtifactError, match=message):
        Assignment.load(tmp_path)


@pytest.mark.parametrize("budget", [{}, {"max_kl": 1, "weight_bytes": 2}])
def test_budget_is_exactly_one(budget):
    with pytest.raises(ValueError, match="budget"):
        assignment(budget=budget)


def point(weight_bytes, loss, name=""):
    return ParetoPoint(
        name=name, bits_per_weight=5, weight_bytes=weight_bytes, predicted_loss=loss, num_groups={"fp8": 2}
    )


def test_front_round_trip(tmp_path):
    pareto = Pareto(inputs={}, score="kl", front=[point(1, 2), point(2, 1)], uniform=[point(3, 1, "fp8")])
    pareto.save(tmp_path)
    assert Pareto.load(tmp_path) == pareto


@pytest.mark.parametrize(
    "front", [[point(2, 1), point(1, 2)], [point(1, 2), point(2, 2)], [point(1, 1), point(1, 0)]]
)
def test_front_holds_no_point_that_another_one_beats(front):
    with pytest.raises(ValueError, match="must grow in bytes and fall in loss"):
        Pareto(inputs={}, score="kl", front=front, uniform=[])
