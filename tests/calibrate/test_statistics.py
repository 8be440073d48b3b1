import pytest
import torch

from ocrquant.adapters.model import load_model
from ocrquant.artifacts import Statistics, tensor_name
from ocrquant.calibrate import collect_statistics, passes
from ocrquant.calibrate.batching import plan_batches
from ocrquant.errors import ModelError, PagesError, WeightValueError
from tests.calibrate.making import INPUTS, LAYERS, SECTION, StoppedError, encoded_batches

DOWN = f"{LAYERS}.1.mlp.down_proj"


@pytest.fixture
def collected(document, pages, new_run):
    run = new_run()
    found = collect_statistics(run, document, pages, SECTION, INPUTS)
    return found, found.load_tensors(run.path)


def files(run):
    return [(run.path / name).read_bytes() for name in ("statistics.json", "statistics.safetensors")]


def observed_rows(document, pages, name):
    """float64 rows of a linear's input by kind of position, page by page masks written out."""
    rows = {"text": [], "image": []}
    for _, encoded in encoded_batches(document, plan_batches(pages, SECTION.batch_size)):
        seen = []
        hook = document.linear(name).register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0]))
        with torch.no_grad():
            document.model(**encoded.forward_inputs(), use_cache=False)
        hook.remove()
        for page in range(len(encoded.valid)):
            for position in range(encoded.valid.shape[1]):
                if name == "lm_head":
                    kind = "text" if encoded.answer_mask[page, position] else None
                else:
                    kind = "image" if encoded.image_mask[page, position] else "text"
                if kind and encoded.valid[page, position]:
                    rows[kind].append(seen[0][page, position].double())
    return {kind: torch.stack(found) if found else None for kind, found in rows.items()}


@pytest.mark.parametrize("name", [DOWN, f"{LAYERS}.3.self_attn.q_proj", f"{LAYERS}.0.linear_attn.out_proj"])
def test_figures_equal_a_plain_recomputation(document, pages, collected, name):
    found, tensors = collected
    entry = next(linear for linear in found.linears if linear.name == name)
    for kind, rows in observed_rows(document, pages, name).items():
        figures = getattr(entry, kind)
        amax = rows.abs().amax(0)
        assert figures.num_tokens == len(rows)
        assert figures.amax == float(amax.max())
        assert figures.outlier_ratio == pytest.approx(float(amax.max() / amax.median()))
        assert figures.dead_channels == []
        assert torch.equal(tensors[tensor_name(name, kind, "channel_amax")].double(), amax)
        expected = rows.square().mean(0).float()
        assert torch.equal(tensors[tensor_name(name, kind, "second_moment")], expected)


def test_head_counts_judged_positions_alone(document, pages, collected):
    found, tensors = collected
    entry = next(linear for linear in found.linears if linear.name == "lm_head")
    rows = observed_rows(document, pages, "lm_head")["text"]
    assert entry.text.num_tokens == len(rows)
    assert entry.text.num_tokens == sum(len(document.encoder.answer_ids(page.text)) for page in pages)
    assert entry.text.amax == float(rows.abs().max())
    assert (entry.image.num_tokens, entry.image.amax, entry.image.dead_channels) == (0, 0.0, [])
    assert not bool(tensors[tensor_name("lm_head", "image", "second_moment")].any())


def test_all_searched_linears_are_there_and_members_agree(document, collected):
    found, tensors = collected
    expected = [linear.name for group in document.map.groups for linear in group.linears]
    assert [linear.name for linear in found.linears] == expected
    assert len(tensors) == 4 * len(expected)
    by_name = {linear.name: linear for linear in found.linears}
    gate, up = by_name[f"{LAYERS}.0.mlp.gate_proj"], by_name[f"{LAYERS}.0.mlp.up_proj"]
    assert (gate.text, gate.image) == (up.text, up.image)


def test_cache_amax(document, pages, collected):
    k_amax = v_amax = count = 0
    for _, encoded in encoded_batches(document, plan_batches(pages, SECTION.batch_size)):
        with torch.no_grad():
            cache = document.model(**encoded.forward_inputs(), use_cache=True).past_key_values
        for page, valid in enumerate(encoded.valid):
            k_amax = max(k_amax, float(cache.layers[3].keys[page][:, valid].abs().max()))
            v_amax = max(v_amax, float(cache.layers[3].values[page][:, valid].abs().max()))
            count += int(valid.sum())
    [entry] = collected[0].kv
    assert entry.name == f"{LAYERS}.3.self_attn"
    assert (entry.k_amax, entry.v_amax, entry.num_tokens) == (k_amax, v_amax, count)


def test_dead_channel_is_named(document, pages, new_run, changed):
    # The multiplier is 1 + w.
    norm = document.module(f"{LAYERS}.2.post_attention_layernorm")
    changed(norm, lambda w: w.index_fill_(0, torch.tensor([5, 9]), -1.0))
    found = collect_statistics(new_run(), document, pages, SECTION, INPUTS)
    entry = next(linear for linear in found.linears if linear.name == f"{LAYERS}.2.mlp.up_proj")
    assert entry.text.dead_channels == entry.image.dead_channels == [5, 9]


def test_poisoned_padding_changes_nothing(document, pages, new_run, monkeypatch):
    clean, poisoned = new_run("clean"), new_run("poisoned")
    collect_statistics(clean, document, pages, SECTION, INPUTS)
    masks, num_poisoned = [], 0
    original = passes.DecoderPasses.batch

    def remember(self, number):
        encoded = original(self, number)
        # Padding is on the right and its token occurs nowhere else.
        masks[:] = [encoded.input_ids == document.encoder.pad_token_id]
        return encoded

    def poison(module, arguments):
        nonlocal num_poisoned
        if not masks:  # while pages are embedded
            return None
        num_poisoned += int(masks[0].sum())
        return (arguments[0].masked_fill(masks[0].unsqueeze(-1), 1e4),)

    monkeypatch.setattr(passes.DecoderPasses, "batch", remember)
    names = {linear.name for group in document.map.groups for linear in group.linears}
    handles = [document.linear(name).register_forward_pre_hook(poison) for name in sorted(names)]
    try:
        collect_statistics(poisoned, document, pages, SECTION, INPUTS)
    finally:
        for handle in handles:
            handle.remove()
    assert num_poisoned > 0
    assert files(poisoned) == files(clean)


# 4 batches, embedded once and taken through 4 blocks and up to the head.
@pytest.mark.parametrize(("at", "left"), [(0, 20), (1, 20), (3, 20), (7, 16), (19, 4)])
def test_goes_on_after_a_kill_with_the_same_bytes(document, pages, new_run, stopping, monkeypatch, at, left):
    whole, halved = new_run("whole"), new_run("halved")
    collect_statistics(whole, document, pages, SECTION, INPUTS)
    stopping(passes.DecoderPasses, "run", at)
    with pytest.raises(StoppedError):
        collect_statistics(halved, document, pages, SECTION, INPUTS)
    monkeypatch.undo()
    assert not (halved.path / "statistics.json").exists()
    calls = stopping(passes.DecoderPasses, "run")
    encoded = stopping(passes, "encode_batch")
    collect_statistics(halved, document, pages, SECTION, INPUTS)
    assert (len(calls), len(encoded)) == (left, 0)
    assert files(halved) == files(whole)


def test_goes_on_after_a_kill_while_pages_are_encoded(document, pages, new_run, stopping, monkeypatch):
    whole, halved = new_run("whole"), new_run("halved")
    collect_statistics(whole, document, pages, SECTION, INPUTS)
    stopping(passes, "encode_batch", 3)
    with pytest.raises(StoppedError):
        collect_statistics(halved, document, pages, SECTION, INPUTS)
    monkeypatch.undo()
    calls = stopping(passes, "encode_batch")
    collect_statistics(halved, document, pages, SECTION, INPUTS)
    assert len(calls) == 1
    assert files(halved) == files(whole)


def test_half_done_work_of_other_inputs_is_not_used(document, pages, new_run, monkeypatch, stopping):
    run = new_run()
    stopping(passes.DecoderPasses, "run", 9)
    with pytest.raises(StoppedError):
        collect_statistics(run, document, pages, SECTION, INPUTS)
    monkeypatch.undo()
    calls = stopping(passes, "encode_batch")
    collect_statistics(run, document, pages, SECTION, {"pages": "1" * 64})
    assert len(calls) == 4


def test_a_model_in_parts_gives_the_same_bytes(document, pages, new_run, tiny_model_folder):
    whole, parted = new_run("whole"), new_run("parted")
    collect_statistics(whole, document, pages, SECTION, INPUTS)
    collect_statistics(parted, load_model(tiny_model_folder, residency="block"), pages, SECTION, INPUTS)
    assert files(parted) == files(whole)


def test_what_happens_between_two_blocks_is_refused(document, pages, new_run):
    model = document.module("model.language_model")
    original = model.forward

    def meddling(*arguments, **keywords):
        inner = document.module(f"{LAYERS}.1")
        hook = inner.register_forward_pre_hook(lambda module, args: (args[0] + 0, *args[1:]))
        try:
            return original(*arguments, **keywords)
        finally:
            hook.remove()

    model.forward = meddling
    try:
        with pytest.raises(ModelError, match="expected nothing between two decoder blocks"):
            collect_statistics(new_run(), document, pages, SECTION, INPUTS)
    finally:
        del model.forward


def test_artefact_is_current_afterwards(document, pages, new_run):
    run = new_run()
    found = collect_statistics(run, document, pages, SECTION, INPUTS)
    assert run.is_current(Statistics, INPUTS)
    assert run.load(Statistics) == found
    assert found.num_pages == len(pages)
    assert not (run.path / ".partial" / "statistics").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [DOWN, "model.visual.merger.linear_fc1", f"{LAYERS}.0.input_layernorm"])
def test_broken_weight_is_named(document, pages, new_run, changed, name, value):
    changed(document.module(name), lambda w: w.view(-1)[3].fill_(value))
    with pytest.raises(
        WeightValueError, match=rf"{name}\.weight: expected finite values, got \d NaN and \d Inf"
    ):
        collect_statistics(new_run(), document, pages, SECTION, INPUTS)


def test_broken_activations_are_named(document, pages, new_run, changed):
    for part in ("gate_proj", "up_proj"):
        changed(document.linear(f"{LAYERS}.1.mlp.{part}"), lambda w: w.mul_(1e30))
    with pytest.raises(ModelError, match=rf"input of {DOWN} on pages .*: expected finite activations"):
        collect_statistics(new_run(), document, pages, SECTION, INPUTS)


def test_no_pages_are_refused(document, new_run):
    with pytest.raises(PagesError):
        collect_statistics(new_run(), document, [], SECTION, INPUTS)
