"""Experts as linears of their own: the same numbers, their tokens counted, their inputs watched once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ocrquant.adapters import load_model
from ocrquant.adapters.experts import Experts
from ocrquant.artifacts.statistics import ExpertStatistics
from ocrquant.calibrate.sites import experts_of, sites_of, watch_experts, watch_inputs
from ocrquant.evaluate.notes import _starved_experts
from tests.adapters.conftest import noise_page


class Fused(nn.Module):
    """Three experts as transformers holds them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate_up_proj = nn.Parameter(torch.randn(3, 16, 4))
        self.down_proj = nn.Parameter(torch.randn(3, 4, 8))
        self.act_fn = nn.functional.silu


def by_hand(fused, x, chosen, weights):
    """Token by token, expert by expert."""
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for expert, weight in zip(chosen[token], weights[token], strict=True):
            gate, up = (fused.gate_up_proj[expert] @ x[token]).chunk(2)
            out[token] += weight * (fused.down_proj[expert] @ (nn.functional.silu(gate) * up))
    return out


def test_each_token_gets_its_experts():
    fused = Fused()
    x, weights = torch.randn(5, 4), torch.rand(5, 2)
    chosen = torch.tensor([[0, 2], [2, 0], [0, 2], [2, 0], [0, 2]])  # expert 1 sees none
    experts = Experts(fused)
    torch.testing.assert_close(experts(x, chosen, weights), by_hand(fused, x, chosen, weights))
    assert experts.get_submodule("1").tokens is None
    assert experts.get_submodule("2").down_proj.weight.data_ptr() == fused.down_proj[2].data_ptr()


@pytest.fixture(scope="module", params=["qwen3_5_moe", "qwen3_vl_moe", "deepseek_ocr2"])
def document(request, family_folder):
    return load_model(family_folder(request.param), dtype=torch.float32)


def test_all_experts_of_a_layer_are_two_groups(document):
    kinds = {group.kind: group for group in document.map.groups if group.kind.startswith("experts.")}
    assert len(kinds["experts.gate_up"].linears) == 2 * 4
    assert len(kinds["experts.down"].linears) == 4
    assert set(experts_of(document.map).values()) == {4}


def test_routers_stay_as_they_are(document):
    routers = [name for name in document.map.kept if name.endswith("mlp.gate")]
    assert len(routers) == len(experts_of(document.map))
    assert all("routing" in document.map.kept[name] for name in routers)


def test_what_experts_read_is_seen_with_its_tokens(document):
    encoded = document.encode([noise_page(60, 40, "ab", seed=1), noise_page(150, 45, "two", seed=2)])
    sites = sites_of(document.map)
    seen, routed = {}, {}
    with (
        watch_inputs(
            document, sites, lambda site, x, tokens: seen.setdefault(site.name, []).append((x, tokens))
        ),
        watch_experts(
            document, experts_of(document.map), lambda name, chosen: routed.setdefault(name, chosen)
        ),
    ):
        document.logits(encoded)
    num_positions = encoded.valid.numel()
    for site in sites:
        ((x, tokens),) = seen[site.name]
        if site.groups[0].kind != "experts.down":
            assert tokens is None
            assert len(x) == num_positions
            continue
        chosen = routed[site.watched.removesuffix(".routed")]
        assert torch.equal(tokens.bincount(minlength=num_positions), torch.full((num_positions,), 2))
        assert chosen.numel() == len(x) == len(tokens)


def test_starved_experts_are_counted_and_told():
    layer = ExpertStatistics(name="a", num_tokens=[100, 90, 110, 8, 0])
    assert layer.num_starved == 2
    assert ExpertStatistics(name="b", num_tokens=[5, 5, 5]).num_starved == 0
    (note,) = _starved_experts([layer])
    assert note.startswith("2 experts of 5 saw few of the calibration pages' tokens.")
    assert _starved_experts([]) == []
