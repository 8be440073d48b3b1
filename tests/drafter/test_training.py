"""Training: it learns what can be learnt, and a stopped run goes on as if it had not been stopped."""

import json

import pytest
import torch

from ocrquant.drafter.batching import NO_LABEL, anchor_places, collate
from ocrquant.drafter.config import DrafterConfig
from ocrquant.drafter.folder import load_drafter, require_target
from ocrquant.drafter.model import DraftModel
from ocrquant.drafter.objective import block_loss, slot_weights
from ocrquant.drafter.store import FeatureFile, shard_files, write_shard
from ocrquant.drafter.target import TargetEnds
from ocrquant.drafter.training import Schedule, Trainer
from ocrquant.errors import ArtifactError, ModelError
from tests.drafter.making import HIDDEN, VOCAB, config, copied, second, sequence


def ends():
    generator = torch.Generator().manual_seed(5)
    table = torch.randn(VOCAB, HIDDEN, generator=generator)
    return TargetEnds(table, table, 4, "0" * 64)


@pytest.fixture
def features(tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    for number in range(2):
        pages = [copied(seed=128 * number + i) for i in range(128)]
        write_shard(folder / f"features-{number:05d}.safetensors", pages)
    return folder


def trainer(features, out, steps, made=None, **options):
    schedule = Schedule(num_steps=steps, max_rows=512, max_anchors=8, muon_rate=2e-2, adam_rate=5e-3)
    return Trainer(made or config(), ends(), [features], [copied(seed=999)], out, schedule, **options)


def test_cached_features_come_back(tmp_path):
    pages = [sequence(20, seed=1), sequence(11, seed=2, kind="block")]
    write_shard(tmp_path / "features-00000.safetensors", pages)
    (path,) = shard_files(tmp_path)
    found = FeatureFile(path)
    assert found.num_tokens == [20, 11]
    assert found.kinds == ["line", "block"]
    for one, other in zip(found, pages, strict=True):
        assert one.page == other.page
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.features, other.features)


def test_another_file_is_no_cache(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "features-0.safetensors")
    with pytest.raises(ArtifactError, match="cached features"):
        FeatureFile(tmp_path / "features-0.safetensors")


def test_labels_are_the_tokens_behind_each_anchor():
    page = sequence(12, answer_start=5)
    batch = collate(
        [page, sequence(9, answer_start=6)],
        [torch.tensor([5, 9]), torch.tensor([7])],
        ends().embedding,
        config(),
    )
    assert batch.labels[0, 0].tolist() == page.tokens[6:9].tolist()
    assert batch.labels[0, 1].tolist() == [*page.tokens[10:12].tolist(), NO_LABEL]
    assert batch.labels[1, 1].tolist() == [NO_LABEL] * 3
    assert anchor_places(page).tolist() == list(range(5, 11))


def test_early_slots_weigh_more():
    torch.testing.assert_close(slot_weights(3, 7.0), torch.tensor([1.0, 0.8668779, 0.7514773]))


def test_loss_of_labels_that_count():
    torch.manual_seed(0)
    model = DraftModel(second())
    batch = collate([sequence(9, answer_start=5)], [torch.tensor([5, 7])], ends().embedding, model.config)
    hidden = model(batch.blocks)
    unary, selected = block_loss(model, hidden, ends().head, batch, 7.0)
    logits = (hidden[0, :, 1:] @ ends().head.T).log_softmax(-1)
    weights = slot_weights(3, 7.0)
    labels = [(a, j, label) for a in range(2) for j, label in enumerate(batch.labels[0, a].tolist())]
    labels = [entry for entry in labels if entry[2] != NO_LABEL]
    expected = sum(-logits[entry] * weights[entry[1]] for entry in labels)
    torch.testing.assert_close(unary, expected / sum(weights[j] for _, j, _ in labels))
    assert selected is not None
    assert torch.isfinite(selected)


def test_it_learns_to_copy(features, tmp_path):
    run = trainer(features, tmp_path / "run", 240)
    run.train(save_every=1e9)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    # 15 tokens behind the first: blocks of 4 give 3.75 a step at most.
    assert lines[-1]["acceptance"]["line.unary"] > 2.9
    again = load_drafter(tmp_path / "run" / "drafter")
    assert isinstance(again.config, DrafterConfig)
    other = trainer(features, tmp_path / "second", 20, second(), start=tmp_path / "run" / "drafter")
    other.train(save_every=1e9)
    lines = [json.loads(line) for line in (tmp_path / "second" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["acceptance"]["line.selected"] > 2.9


def test_a_stopped_run_goes_on(features, tmp_path):
    whole = trainer(features, tmp_path / "whole", 9)
    whole.train(save_every=1e9)

    class StoppedError(Exception):
        pass

    first = trainer(features, tmp_path / "parts", 9)
    step = first._step

    def stop_at_five(batch):
        if first.num_done == 4:
            first.save()
            raise StoppedError
        return step(batch)

    first._step = stop_at_five
    with pytest.raises(StoppedError):
        first.train(save_every=1e9)
    second_part = trainer(features, tmp_path / "parts", 9)
    assert second_part.num_done == 4
    second_part.train(save_every=1e9)
    for one, other in zip(whole.model.parameters(), second_part.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_drafter_for_another_target_is_refused():
    with pytest.raises(ModelError, match="drafter for pico"):
        require_target(config(), "1" * 64, "pico")
    require_target(config(), "0" * 64, "pico")
