import pytest
import torch

from ocrquant.errors import ModelError
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.sensitivity.replay import HiddenStates, trace_batch
from ocrquant.simulate import apply_plan

GROUPS = [
    "layers.0.gdn.qkvz",
    "layers.1.gdn.out",
    "layers.2.mlp.gate_up",
    "layers.3.attention.qkv",
    "layers.3.attention.o",
    "layers.3.mlp.down",
    "lm_head",
]


def candidate_of(candidates, group, precision="nvfp4"):
    return next(c for c in candidates if (c.group, c.precision) == (group, precision))


@torch.no_grad()
def whole_pass(document, encoded):
    return document.logits(encoded)[encoded.answer_mask]


@pytest.mark.parametrize("float32", [False, True])
def test_replay_from_every_block_equals_the_whole_pass(document, scoring, float32):
    with scoring(float32=float32) as (encoded, trace, _), torch.no_grad():
        expected = whole_pass(document, encoded)
        assert expected.dtype == (torch.float32 if float32 else torch.bfloat16)
        assert torch.equal(trace.logits, expected)
        for block in range(document.map.num_blocks + 1):
            assert torch.equal(trace.logits_from(block), expected)


@pytest.mark.parametrize("group", GROUPS)
def test_replay_of_a_changed_group_equals_the_whole_pass(document, scoring, candidates, group):
    for precision in ("fp8", "nvfp4"):
        candidate = candidate_of(candidates, group, precision)
        with scoring() as (encoded, trace, rounded), torch.no_grad():
            with apply_plan(document.model, rounded.linears(candidate)):
                expected = whole_pass(document, encoded)
                found = trace.logits_from(candidate.block)
            assert torch.equal(found, expected)
            assert not torch.equal(found, trace.logits)


def test_replay_from_behind_the_change_would_miss_it(document, scoring, candidates):
    candidate = candidate_of(candidates, "layers.1.gdn.out")
    with scoring() as (_, trace, rounded), torch.no_grad():
        with apply_plan(document.model, rounded.linears(candidate)):
            late = trace.logits_from(candidate.block + 1)
        assert torch.equal(late, trace.logits)


def test_hidden_states_on_disk_are_the_same(scoring, partial, document):
    with scoring() as (_, trace, _), torch.no_grad():
        resident = [trace.hidden.get(block) for block in range(document.map.num_blocks + 1)]
        assert partial.names() == []
    # Room for two of the five.
    with scoring(resident_bytes=2 * resident[0].nbytes) as (_, trace, _), torch.no_grad():
        assert partial.names() == ["hidden-2", "hidden-3", "hidden-4"]
        for block, expected in enumerate(resident):
            assert torch.equal(trace.hidden.get(block), expected)
        assert torch.equal(trace.logits_from(1), trace.logits)


def test_rows_are_the_judged_positions(scoring):
    with scoring() as (encoded, trace, _):
        assert trace.num_tokens == encoded.num_answer_tokens.tolist()
        assert len(trace.logits) == sum(trace.num_tokens)
        values = torch.ones(len(trace.rows))
        assert trace.sum_by_page(values) == trace.num_tokens


def test_sums_are_those_of_each_page(scoring):
    with scoring() as (encoded, trace, _):
        values = torch.arange(len(trace.rows)) ** 2
        grid = torch.zeros(encoded.answer_mask.shape, dtype=torch.int64)
        grid[encoded.answer_mask] = values
        assert trace.sum_by_page(values) == grid.sum(1).tolist()


def test_hooks_are_gone_afterwards(document, scoring, partial):
    with scoring():
        pass
    for module in document.model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks


def test_model_with_more_before_its_head_is_refused(document, scoring, partial):
    head = document.model.get_output_embeddings()
    with scoring() as (encoded, _, _):
        handle = head.register_forward_pre_hook(lambda module, arguments: (arguments[0] * 2,))
        try:
            with pytest.raises(ModelError, match="nothing but a norm between"):
                trace_batch(document, encoded, HiddenStates(partial, 1 << 30))
        finally:
            handle.remove()


def test_divergence_of_the_unchanged_model_is_zero(document, scoring):
    with scoring(float32=False) as (_, trace, _), torch.no_grad():
        for block in range(document.map.num_blocks + 1):
            assert not kl_from_logits(trace.logits, trace.logits_from(block)).any()
