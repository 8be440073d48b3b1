import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from ocrquant.adapters import search_space
from ocrquant.errors import PagesError
from ocrquant.formats import Precision
from ocrquant.sensitivity.batches import MAX_PADDING, choose_pages, encode, plan_batches
from ocrquant.sensitivity.candidates import candidates_of, group_records
from ocrquant.sensitivity.estimates import ratio_estimate
from ocrquant.sensitivity.precision import in_float32

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4


def test_estimate_by_hand():
    # 12 over 6 tokens is 2 a token; residuals 1, 1, -2; sqrt(6 * 3 / 2) / 6.
    found = ratio_estimate([3.0, 5.0, 4.0], [1, 2, 3])
    assert found.mean == 2.0
    assert found.standard_error == pytest.approx(0.5)


def test_estimate_of_equal_tokens_is_the_standard_error_of_the_mean():
    values = torch.tensor([0.3, 0.1, 0.7, 0.2, 0.2], dtype=torch.float64)
    found = ratio_estimate((values * 4).tolist(), [4] * 5)
    assert found.mean == pytest.approx(float(values.mean()))
    assert found.standard_error == pytest.approx(float(values.std()) / math.sqrt(5))


def test_pages_in_proportion_to_their_tokens_have_no_scatter():
    assert ratio_estimate([1.0, 10.0, 4.0], [1, 10, 4]).standard_error == 0


def test_estimate_scatters_as_it_says(rng):
    means, errors = [], []
    for _ in range(400):
        tokens = [rng.randrange(1, 30) for _ in range(40)]
        rates = [rng.expovariate(2) for _ in tokens]
        found = ratio_estimate([t * r for t, r in zip(tokens, rates, strict=True)], tokens)
        means.append(found.mean)
        errors.append(found.standard_error)
    scatter = torch.tensor(means).std()
    assert float(torch.tensor(errors).mean()) == pytest.approx(float(scatter), rel=0.15)


def test_choice_of_pages_is_stable(pages):
    chosen = choose_pages(pages, 3)
    assert choose_pages(pages[::-1], 3) == chosen
    assert choose_pages(pages, None)[:3] == chosen
    without = [page for page in pages if page is not chosen[1]]
    assert choose_pages(without, 3)[:2] == [chosen[0], chosen[2]]


@pytest.mark.parametrize("num_pages", [0, 1])
def test_noise_needs_two_pages(pages, num_pages):
    with pytest.raises(PagesError, match=f"at least 2, .*got {num_pages}; take more"):
        choose_pages(pages[:num_pages], None)


def test_batches_hold_every_page_once_and_little_padding(document, pages):
    for batch_size in (1, 2, 6):
        batches = plan_batches(document, pages, batch_size)
        assert sorted(page.id for batch in batches for page in batch) == sorted(page.id for page in pages)
        assert plan_batches(document, pages[::-1], batch_size) == batches
        for batch in batches:
            assert len(batch) <= batch_size
            lengths = encode(document, batch).valid.sum(1)
            assert lengths.max() <= MAX_PADDING * lengths.min()
    assert any(len(batch) > 1 for batch in plan_batches(document, pages, 6))


def test_batches_are_planned_by_true_lengths(document, pages):
    lengths = [int(encode(document, batch).valid.sum(1).max()) for batch in plan_batches(document, pages, 1)]
    assert lengths == sorted(lengths)


def test_page_without_text_is_named(document, pages):
    with pytest.raises(PagesError, match="page page-2: expected a text"):
        plan_batches(document, [*pages[:2], replace(pages[2], text=None)], 2)


def test_groups_say_what_is_open_and_why_not_more(document):
    space = search_space(
        document.map,
        [FP8, NVFP4],
        keep_bf16=["lm_head"],
        force={FP8: ["layers.3.attention.*"]},
    )
    records = {record.name: record for record in group_records(document.map, space)}
    assert records["lm_head"].precisions == [BF16]
    assert records["lm_head"].reason == "search.keep_bf16 says lm_head"
    assert records["layers.3.attention.qkv"].precisions == [FP8]
    assert records["layers.3.attention.qkv"].reason == "search.force.fp8 says layers.3.attention.*"
    assert records["layers.0.mlp.down"].precisions == [BF16, FP8, NVFP4]
    assert records["layers.0.mlp.down"].reason == ""
    found = candidates_of(document.map, list(records.values()))
    assert [c.precision for c in found if c.group == "layers.3.attention.qkv"] == [FP8]
    assert not [c for c in found if c.group == "lm_head"]
    assert [c.block for c in found] == sorted(c.block for c in found)


def test_head_comes_after_all_blocks(candidates, document):
    assert {c.block for c in candidates if c.group == "lm_head"} == {document.map.num_blocks}


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(3, 2, dtype=torch.bfloat16)
        self.wide = nn.Parameter(torch.rand(2))
        self.register_buffer("index", torch.arange(3))
        self.register_buffer("short", torch.rand(3).half())


def test_float32_is_given_back_bit_for_bit():
    model = Mixed()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    owners = {name: parameter for name, parameter in model.named_parameters()}
    setting = torch.backends.cuda.matmul.fp32_precision

    def fail():
        with in_float32(model):
            assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32, torch.int64}
            for name, tensor in model.state_dict().items():
                assert torch.equal(tensor, before[name].to(tensor.dtype))
            raise KeyError("planned")

    with pytest.raises(KeyError, match="planned"):
        fail()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])
    assert all(dict(model.named_parameters())[name] is owner for name, owner in owners.items())
    assert torch.backends.cuda.matmul.fp32_precision == setting
