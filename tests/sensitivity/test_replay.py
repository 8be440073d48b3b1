import pytest
import torch

from ocrquant.errors import ModelError
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.sensitivity import replay
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
        assert torch.equal(torch.cat(list(trace.reference())), expected)
        for block in range(document.map.num_blocks + 1):
            assert torch.equal(torch.cat(list(trace.logits_from(block))), expected)


@pytest.mark.parametrize("group", GROUPS)
def test_replay_of_a_changed_group_equals_the_whole_pass(document, scoring, candidates, group):
    for precision in ("fp8", "nvfp4"):
        candidate = candidate_of(candidates, group, precision)
        with scoring() as (encoded, trace, rounded), torch.no_grad():
            with apply_plan(document.model, rounded.linears({candidate.group: candidate.precision})):
                expected = whole_pass(document, encoded)
                found = torch.cat(list(trace.logits_from(candidate.block)))
                reference = torch.cat(list(trace.reference()))
            assert torch.equal(found, expected)
            assert not torch.equal(found, reference)


def test_replay_from_behind_the_change_would_miss_it(document, scoring, candidates):
    candidate = candidate_of(candidates, "layers.1.gdn.out")
    with scoring() as (_, trace, rounded), torch.no_grad():
        with apply_plan(document.model, rounded.linears({candidate.group: candidate.precision})):
            late = torch.cat(list(trace.logits_from(candidate.block + 1)))
        assert torch.equal(late, torch.cat(list(trace.reference())))


def test_hidden_states_on_disk_are_the_same(scoring, partial, document):
    with scoring() as (_, trace, _), torch.no_grad():
        resident = [trace.hidden.get(block) for block in range(document.map.num_blocks + 1)]
        assert partial.names() == []
    # Room for two of the five.
    with scoring(resident_bytes=2 * resident[0].nbytes) as (_, trace, _), torch.no_grad():
        assert partial.names() == ["hidden-2", "hidden-3", "hidden-4"]
        for block, expected in enumerate(resident):
            assert torch.equal(trace.hidden.get(block), expected)
        assert torch.equal(torch.cat(list(trace.logits_from(1))), torch.cat(list(trace.reference())))


def test_rows_are_the_judged_positions(scoring):
    with scoring() as (encoded, trace, _):
        assert trace.num_tokens == encoded.num_answer_tokens.tolist()
        assert [len(logits) for logits in trace.reference()] == [sum(trace.num_tokens)]
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
            for reference, logits in zip(trace.reference(), trace.logits_from(block), strict=True):
                assert not kl_from_logits(reference, logits).any()


@pytest.mark.parametrize("kept_bytes", [0, 1 << 30])
def test_logits_in_parts_are_the_same(scoring, candidates, document, monkeypatch, kept_bytes):
    """Also under a quantized head, whose reference is the head that was there before."""
    with scoring() as (_, trace, _), torch.no_grad():
        expected = torch.cat(list(trace.reference()))
    monkeypatch.setattr(replay, "PART_ELEMENTS", 7 * expected.shape[1] + 3)
    monkeypatch.setattr(replay, "KEPT_LOGITS_BYTES", kept_bytes)
    candidate = candidate_of(candidates, "lm_head")
    with scoring() as (_, trace, rounded), torch.no_grad():
        assert len(trace._kept) == (len(trace.parts) if kept_bytes else 0)
        with apply_plan(document.model, rounded.linears({candidate.group: candidate.precision})):
            found = list(trace.reference())
            changed = list(trace.logits_from(candidate.block))
        assert [len(part) for part in found[:-1]] == [7] * ((len(expected) - 1) // 7)
        torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(torch.cat(changed), expected, rtol=1e-5, atol=1e-6)
