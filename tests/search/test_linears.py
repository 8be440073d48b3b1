import pytest
import torch
from torch import nn

from ocrquant.errors import ModelError
from ocrquant.search.linears import checked_groups, tensor_key, watch_linears
from tests.search import models


def watched(module, batches):
    return watch_linears(module, batches, module)


def test_linears_that_read_one_tensor_share_a_group_and_others_do_not():
    found = watched(models.transformer(), models.tokens())
    assert found.groups == {
        **{
            name: linears
            for i in (0, 1)
            for name, linears in {
                f"layers.{i}.query+key+value": [f"layers.{i}.{n}" for n in ("query", "key", "value")],
                f"layers.{i}.out": [f"layers.{i}.out"],
                f"layers.{i}.gate+up": [f"layers.{i}.gate", f"layers.{i}.up"],
                f"layers.{i}.down": [f"layers.{i}.down"],
            }.items()
        },
        "head": ["head"],
    }
    assert found.left_out == {}


def test_equal_values_in_two_tensors_are_two_tensors():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            return self.a(x) + self.b(x.clone()) + self.c(x)

    assert list(watched(Twice(), [torch.ones(2, 16)]).groups.values()) == [["a", "c"], ["b"]]


def test_memory_that_is_used_again_is_another_tensor():
    class Chain(nn.Module):
        """Each input is freed before the next one is made, so that it may lie at the same place."""

        def __init__(self):
            super().__init__()
            self.steps = nn.ModuleList(nn.Linear(16, 1) for _ in range(8))

        def forward(self, x):
            total = 0.0
            for index, step in enumerate(self.steps):
                total = total + step(x * (index + 1.0))
            return total

    assert len(watched(Chain(), [torch.ones(2, 16)]).groups) == 8


def test_a_tensor_that_was_written_into_is_another_one():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            y = x * 1.0
            first = self.a(y)
            y += 1.0
            return first + self.b(y)

    assert list(watched(InPlace(), [torch.ones(2, 16)]).groups) == ["a", "b"]
    x = torch.zeros(4)
    before = tensor_key(x)
    assert tensor_key(x.view(4)) == before
    x += 1
    assert tensor_key(x) != before


def test_groups_of_several_batches_and_calls_are_joined():
    class Routed(nn.Module):
        """Which two linears read one tensor depends on the batch."""

        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(16, 16) for _ in range(4))

        def forward(self, x):
            other = self.b if x[0, 0] > 0 else self.c
            return self.a(x) + other(x) + self.d(x * 2)

    batches = [torch.ones(1, 16), -torch.ones(1, 16)]
    assert list(watched(Routed(), batches).groups) == ["a+b+c", "d"]
    assert list(watched(Routed(), batches[:1]).groups) == ["a+b", "d"]
    assert watched(Routed(), batches[:1]).left_out == {"c": "never called"}


def test_what_cannot_be_swapped_or_is_held_elsewhere_is_left_out_with_the_reason():
    tied = watched(models.transformer(tied=True), models.tokens())
    assert tied.left_out == {"head": "its weight is also embed.weight"}

    module = models.mlp()
    module.again = module.net[2]
    assert watched(module, models.rows()).left_out == {"net.2": "it is also again"}


def test_linears_that_share_a_weight_share_a_group():
    module = models.mlp()
    module.net[2].weight = module.net[0].weight
    assert list(watched(module, models.rows()).groups) == ["net.0+2", "net.4"]


def test_amax_is_the_largest_over_all_batches():
    batches = [*models.rows(), torch.full((1, models.WIDTH), -31.0)]
    assert watched(models.mlp(), batches).amax["net.0"] == 31.0


def test_no_hook_stays():
    module = models.mlp()
    watched(module, models.rows())
    assert not any(child._forward_pre_hooks for child in module.modules())


def test_a_module_without_linears_and_inputs_that_are_not_finite_are_refused():
    with pytest.raises(ModelError, match="linears to quantize"):
        watched(nn.ReLU(), models.rows())
    for bad in (float("nan"), float("inf")):
        batches = [*models.rows(), torch.full((1, models.WIDTH), bad)]
        with pytest.raises(ModelError, match=r"input of net\.0"):
            watched(models.mlp(), batches)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({}, "at least one"),
        ({"a": []}, "group a"),
        ({"a": ["net.0"], "b": ["net.0"]}, "named twice"),
        ({"a": ["net.1"]}, "no linear of that name"),
    ],
)
def test_groups_of_a_caller_are_checked(groups, words):
    with pytest.raises(ModelError, match=words):
        checked_groups(watched(models.mlp(), models.rows()), groups)


def test_a_caller_may_split_and_leave_out():
    found = watched(models.transformer(), models.tokens())
    wanted = {"mine": ["layers.0.query"], "other": ["layers.0.key", "head"]}
    assert checked_groups(found, wanted) == wanted
