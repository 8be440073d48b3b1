import pytest
import torch

from ocrquant.calibrate.batching import plan_batches
from ocrquant.calibrate.sites import positions_of, sites_of, watch_caches, watch_inputs
from tests.calibrate.making import LAYERS, encoded_batches, forward


def test_one_site_for_all_that_read_a_tensor(document):
    sites = sites_of(document.map)
    names = [[group.name for group in site.groups] for site in sites]
    gdn = [["layers.{}.gdn.qkvz"], ["layers.{}.gdn.out"], ["layers.{}.mlp.gate_up"], ["layers.{}.mlp.down"]]
    attention = [["layers.3.attention.qkv"], ["layers.3.attention.o"]]
    expected = [[group.format(i) for group in groups] for i in range(3) for groups in gdn]
    expected += [*attention, ["layers.3.mlp.gate_up"], ["layers.3.mlp.down"], ["lm_head"]]
    assert names == expected
    assert [site.name for site in sites if site.is_head] == ["lm_head"]


def test_sites_know_the_norm_and_its_kept_readers(document):
    by_name = {site.name: site for site in sites_of(document.map)}
    fold = by_name[f"{LAYERS}.0.linear_attn.in_proj_qkv"].fold
    assert fold.norm == f"{LAYERS}.0.input_layernorm"
    assert f"{LAYERS}.0.linear_attn.in_proj_b" in fold.linears
    assert by_name["lm_head"].fold.norm == "model.language_model.norm"
    assert by_name[f"{LAYERS}.0.mlp.down_proj"].fold is None


def test_positions_leave_padding_out(document, pages):
    [(_, encoded)] = encoded_batches(document, [pages[:4]])
    assert not bool(encoded.valid.all())
    ordinary, head = (positions_of(encoded, is_head=is_head) for is_head in (False, True))
    count = encoded.valid.sum()
    assert len(ordinary.text) + len(ordinary.image) == count
    assert bool(encoded.image_mask.flatten()[ordinary.image].all())
    assert not bool(encoded.image_mask.flatten()[ordinary.text].any())
    assert bool(encoded.valid.flatten()[torch.cat([ordinary.text, ordinary.image])].all())
    assert len(head.image) == 0
    assert torch.equal(head.text, encoded.answer_mask.flatten().nonzero().squeeze(1))
    # One judged prediction for each character and the end.
    assert len(head.text) == sum(len(document.encoder.answer_ids(page.text)) for page in pages[:4])


def test_hooks_see_each_site_once_in_order_and_go_away(document, pages):
    sites, seen = sites_of(document.map), []
    [(_, encoded)] = encoded_batches(document, [pages[:2]])
    with watch_inputs(document, sites, lambda site, x, _: seen.append((site.name, tuple(x.shape)))):
        forward(document, encoded)
    assert seen == [(site.name, (encoded.valid.numel(), site.in_features)) for site in sites]
    forward(document, encoded)
    assert len(seen) == len(sites)


def test_errors_inside_the_model_are_not_swallowed(document, pages):
    [(_, encoded)] = encoded_batches(document, [pages[:2]])

    def fail(site, x, tokens):
        raise ValueError("broken")

    with (
        watch_inputs(document, sites_of(document.map), fail),
        pytest.raises(ValueError, match="broken"),
    ):
        forward(document, encoded)


def test_caches_are_what_a_real_cache_holds(document, pages):
    [(_, encoded)] = encoded_batches(document, [pages[:3]])
    seen = {}
    with watch_caches(
        document, document.map.kv_attention, lambda name, keys, values: seen.update({name: (keys, values)})
    ):
        forward(document, encoded)
    with torch.no_grad():
        cache = document.model(**encoded.forward_inputs(), use_cache=True).past_key_values
    assert list(seen) == [f"{LAYERS}.3.self_attn"]
    keys, values = seen[f"{LAYERS}.3.self_attn"]
    assert torch.equal(keys, cache.layers[3].keys)
    assert torch.equal(values, cache.layers[3].values)


def test_batches_are_of_similar_size_and_fixed(pages):
    batches = plan_batches(pages, 5)
    assert [len(batch) for batch in batches] == [5, 5, 2]
    areas = [page.width * page.height for batch in batches for page in batch]
    assert areas == sorted(areas)
    assert plan_batches(pages[::-1], 5) == batches
