from dataclasses import replace

import pytest
import torch

from ocrquant.formats import Precision
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.sensitivity import candidates as candidates_module
from ocrquant.sensitivity import replay
from ocrquant.sensitivity.gradient import drawn_labels, gradient_sums
from ocrquant.simulate import apply_plan, simulated_output

LETTER = 40
IDS = [f"page-{number}" for number in range(4)]


def poisoned_padding(encoded):
    ids = torch.where(encoded.valid, encoded.input_ids, torch.full_like(encoded.input_ids, LETTER))
    assert not torch.equal(ids, encoded.input_ids)
    return replace(encoded, input_ids=ids)


def only(mask_of):
    """A change of the batch that judges some of the answer's positions only."""
    return lambda encoded: replace(encoded, answer_mask=encoded.answer_mask & mask_of(encoded))


def even(encoded):
    return (encoded.answer_mask.cumsum(1) % 2 == 0) & encoded.answer_mask


def odd(encoded):
    return ~even(encoded)


def test_kl_is_the_definition(document, scoring, candidates, measured):
    candidate = candidates[3]
    with scoring() as (encoded, trace, rounded), torch.no_grad():
        plain = document.logits(encoded).double().log_softmax(-1)
        with apply_plan(document.model, rounded.linears({candidate.group: candidate.precision})):
            other = document.logits(encoded).double().log_softmax(-1)
        by_position = (plain.exp() * (plain - other)).sum(-1)
        expected = (by_position * encoded.answer_mask).sum(1)
        found = torch.tensor(measured(trace, [candidate], rounded)[0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-8)
    assert (found > 0).all()


def test_kl_of_a_group_that_is_left_alone_is_zero(scoring, candidates, monkeypatch, measured):
    with scoring() as (_, trace, rounded):
        assert all(value > 0 for value in measured(trace, candidates[:1], rounded)[0])
        monkeypatch.setattr(candidates_module, "apply_plan", lambda model, *_, **__: apply_plan(model, {}))
        assert measured(trace, candidates, rounded) == [[0.0] * 4] * len(candidates)


def test_what_is_in_the_padding_changes_nothing(scoring, candidates, measured):
    some = candidates[::5]
    with scoring() as (_, trace, rounded):
        plain_kl = torch.tensor(measured(trace, some, rounded))
        plain_gradient = gradient_sums(trace, some, rounded, IDS)
    with scoring(change=poisoned_padding) as (_, trace, rounded):
        assert torch.equal(torch.tensor(measured(trace, some, rounded)), plain_kl)
        assert gradient_sums(trace, some, rounded, IDS) == plain_gradient


def test_kl_adds_up_over_the_judged_tokens_only(scoring, candidates, measured):
    some = candidates[::5]
    with scoring() as (_, trace, rounded):
        whole = torch.tensor(measured(trace, some, rounded))
    parts = []
    for part in (even, odd):
        with scoring(change=only(part)) as (_, trace, rounded):
            parts.append(torch.tensor(measured(trace, some, rounded)))
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-5, atol=1e-9)
    assert (parts[0] < whole).all()


def slow_gradient_score(document, encoded, trace, candidate, rounded):
    """One pass with a graph of the whole model; then products position by position, in float64."""
    seen = {}

    def keep(name):
        def hook(module, arguments, output):
            output.retain_grad()
            seen[name] = (arguments[0].detach(), output)

        return hook

    handles = [document.linear(name).register_forward_hook(keep(name)) for name in candidate.linears]
    embedding = document.model.get_input_embeddings().weight.requires_grad_()
    try:
        logits = document.logits(encoded)[encoded.answer_mask]
        log_p = logits.float().log_softmax(-1)
        labels = drawn_labels(trace, IDS)
        (-sum(log_p[i, label] for i, label in enumerate(labels.tolist()))).backward()
    finally:
        embedding.requires_grad_(False)
        embedding.grad = None
        for handle in handles:
            handle.remove()
    pages, length = encoded.input_ids.shape
    sums = [0.0] * pages
    for page in range(pages):
        for position in range(length):
            product = 0.0
            for name, linear in rounded.linears({candidate.group: candidate.precision}).items():
                x, y = seen[name]
                error = (
                    simulated_output(x[page, position], linear).double() - y[page, position].detach().double()
                )
                product += float((y.grad[page, position].double() * error).sum())
            sums[page] += product**2 / 2
    return sums


@pytest.mark.parametrize(
    ("group", "precision"),
    [
        ("layers.0.gdn.qkvz", Precision.NVFP4),
        ("layers.1.mlp.down", Precision.FP8),
        ("layers.3.attention.qkv", Precision.NVFP4),
        ("layers.3.attention.o", Precision.FP8),
        ("lm_head", Precision.NVFP4),
    ],
)
def test_gradient_score_is_the_definition(document, scoring, candidates, group, precision):
    candidate = next(c for c in candidates if (c.group, c.precision) == (group, precision))
    with scoring() as (encoded, trace, rounded):
        found = gradient_sums(trace, candidates, rounded, IDS)[group, precision]
        expected = slow_gradient_score(document, encoded, trace, candidate, rounded)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=2e-3, atol=1e-12)
    assert all(value > 0 for value in found)


def test_scores_in_parts_are_the_same(scoring, candidates, monkeypatch, measured):
    some = [c for c in candidates if c.group in ("layers.2.mlp.down", "lm_head")]
    with scoring() as (_, trace, rounded):
        gradient, kl = gradient_sums(trace, some, rounded, IDS), torch.tensor(measured(trace, some, rounded))
    monkeypatch.setattr(replay, "PART_ELEMENTS", 2000)
    with scoring() as (_, trace, rounded):
        assert len(trace.parts) > 3
        for key, sums in gradient_sums(trace, some, rounded, IDS).items():
            assert sums == pytest.approx(gradient[key], rel=1e-3)
        torch.testing.assert_close(torch.tensor(measured(trace, some, rounded)), kl, rtol=1e-2, atol=1e-8)


def test_gradient_estimates_the_kl(scoring, candidates, measured):
    """Of the same order for every candidate, and the better the more tokens: the draws are few here."""
    with scoring(batch=slice(0, 6)) as (_, trace, rounded):
        ids = [f"page-{number}" for number in range(6)]
        gradient = gradient_sums(trace, candidates, rounded, ids)
        estimate = torch.tensor([sum(gradient[c.group, c.precision]) for c in candidates])
        kl = torch.tensor(measured(trace, candidates, rounded)).sum(1)
    log_ratio = (estimate / kl).log()
    assert abs(float(log_ratio.mean())) < 0.3
    assert float(log_ratio.std()) < 0.5
    ranks = torch.stack([estimate.argsort().argsort(), kl.argsort().argsort()]).double()
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.9


def test_labels_follow_the_distribution_and_the_page(scoring):
    with scoring() as (_, trace, _):
        count = 4000
        logits = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0]).log()
        trace.parts = [slice(0, 1500), slice(1500, count)]
        trace._kept = [logits.expand(1500, -1), logits.expand(count - 1500, -1)]
        trace.num_tokens = [count // 2, count // 2]
        labels = drawn_labels(trace, ["a", "b"])
        share = labels.bincount(minlength=5) / count
        torch.testing.assert_close(share, torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0]), rtol=0, atol=0.03)
        first, second = labels.split(count // 2)
        assert not torch.equal(first, second)
        assert torch.equal(drawn_labels(trace, ["b", "a"]), torch.cat([second, first]))


def test_reference_is_the_smoothed_model(document, rounded_run, scoring):
    """Smoothing belongs to every plan, so it must not count against a group."""
    path, rounding = rounded_run
    with rounding.open_weights(path) as weights:
        assert weights.smoothed_norms()
    with scoring(float32=False) as (encoded, trace, _), torch.no_grad():
        smoothed = torch.cat(list(trace.reference()))
    plain = document.logits(encoded)[encoded.answer_mask]
    assert not torch.equal(plain, smoothed)
    assert float(kl_from_logits(plain, smoothed).mean()) < 1e-2
