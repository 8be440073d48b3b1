"""What is found by watching agrees with what the adapters know of a document model."""

import numpy as np
import pytest
import torch
from PIL import Image

from ocrquant.adapters.model import PageInput, load_model
from ocrquant.search import search
from ocrquant.search.linears import watch_linears
from ocrquant.sensitivity.precision import in_float32


@pytest.fixture(scope="module")
def document(tiny_model_folder):
    return load_model(tiny_model_folder)


@pytest.fixture(scope="module")
def batches(document):
    draw = np.random.default_rng(3)
    images = [Image.fromarray(draw.integers(0, 255, (32, 96), dtype=np.uint8)) for _ in range(2)]
    return [document.encode([PageInput(image, "line", "some words", "a")]) for image in images]


@pytest.fixture(scope="module")
def watched(document, batches):
    return watch_linears(document.model, batches, document.logits)


def test_linears_of_a_group_are_never_apart(document, watched):
    found = {linear: group for group, linears in watched.groups.items() for linear in linears}
    for group in document.map.groups:
        names = [linear.name for linear in group.linears if linear.name not in watched.left_out]
        assert len({found[name] for name in names}) <= 1, group.name


def test_groups_are_no_larger_than_what_reads_one_norm(document, watched):
    readers = [set(fold.linears) for fold in document.map.norm_folds]
    decoder = {linear.name for linear in document.map.linears()}
    for linears in watched.groups.values():
        if len(linears) > 1 and set(linears) & decoder:
            assert any(set(linears) <= names for names in readers), linears


def test_decoder_is_searched_alone_by_the_groups_of_the_adapter(document, batches):
    wanted = {group.name: [linear.name for linear in group.linears] for group in document.map.groups[:4]}

    def answers(model, batch):
        return document.logits(batch)[batch.answer_mask]

    with in_float32(document.model):
        found = search(
            document.model, batches, answers, budget=6.0, groups=lambda _: wanted, score="measured"
        )
    assert list(found.assignment.groups) == list(wanted)
    assert all(row.mean > 0 for row in found.sensitivity.rows)
    assert found.sensitivity.rows[0].num_tokens == sum(int(batch.answer_mask.sum()) for batch in batches)
    assert document.model.dtype is torch.bfloat16
