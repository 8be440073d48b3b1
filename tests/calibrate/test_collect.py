import pytest
import torch

from ocrquant.artifacts import PartialStage
from ocrquant.calibrate import collect
from ocrquant.calibrate.batching import plan_batches
from ocrquant.calibrate.collect import Balance, PageSplit
from ocrquant.calibrate.passes import DecoderPasses
from ocrquant.calibrate.sites import positions_of, sites_of, watch_inputs
from tests.calibrate.making import encoded_batches, forward


@pytest.fixture(scope="module")
def split(pages):
    return PageSplit(plan_batches(pages[:8], 3), plan_batches(pages[8:], 3))


@pytest.fixture
def run(document, split, tmp_path):
    """Takes all pages through the decoder up to some sites, all at once or one after the other."""

    def collect_at(sites, *, alone=False):
        passes = DecoderPasses(document, split.batches, PartialStage(tmp_path / "stage", {}))
        for number in range(len(split.batches)):
            passes.embed(number)
        balances = {site.name: Balance(0.5, 0.25) for site in sites}
        found = {}
        for step in range(document.map.num_blocks + 1):
            here = [s for s in sites if (document.map.num_blocks if s.block is None else s.block) == step]
            for wave in [[site] for site in here] if alone else [here]:
                found |= collect.collect(document, passes, step, wave, split, balances, keep=True)
            if not here:
                collect.collect(document, passes, step, [], split, balances, keep=True)
        return found

    return collect_at


def rows_of(document, batches, site):
    """All rows of a site, text and image, batch by batch."""
    kinds = ([], [])
    for _, encoded in encoded_batches(document, batches):
        seen = []
        with watch_inputs(document, [site], lambda _, x, tokens, seen=seen: seen.append(x.float())):
            forward(document, encoded)
        positions = positions_of(encoded, is_head=site.is_head)
        for kind, chosen in zip(kinds, (positions.text, positions.image), strict=True):
            kind.append(seen[0][chosen])
    return [torch.cat(kind) for kind in kinds]


@pytest.mark.parametrize("index", [0, 3, -1])
def test_hessian_equals_a_plain_recomputation(document, split, run, index):
    site = sites_of(document.map)[index]
    text, image = (rows.double() for rows in rows_of(document, split.fit, site))
    expected = 0.5 * text.T @ text + 0.25 * image.T @ image
    found = run([site])[site.name].hessian
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_samples_come_from_their_own_pages(document, split, run, monkeypatch):
    monkeypatch.setattr(collect, "_FIT_ROWS", 64)
    monkeypatch.setattr(collect, "_HELD_BACK_ROWS", 40)
    site = sites_of(document.map)[3]
    found = run([site])[site.name]
    for rows, batches, quota in ((found.fit, split.fit, 4), (found.held_back, split.held_back, 5)):
        text, image = rows_of(document, batches, site)
        num_pages = sum(map(len, batches))
        everything = {tuple(row.tolist()) for part in (text, image) for row in part}
        assert {tuple(row.tolist()) for row in rows.values} <= everything
        assert len(rows.values) <= 2 * quota * num_pages
        assert len(rows.values) > quota * num_pages
        # Text and image weigh the same, whatever their numbers.
        is_text = torch.tensor([any(torch.equal(row, t) for t in text) for row in rows.values])
        assert float(rows.weights[is_text].sum()) == pytest.approx(0.5)
        assert float(rows.weights.sum()) == pytest.approx(1.0)


def test_head_samples_judged_positions(document, split, run):
    site = sites_of(document.map)[-1]
    found = run([site])[site.name]
    text, image = rows_of(document, split.held_back, site)
    assert len(image) == 0
    assert len(found.held_back.values) == len(text)
    assert torch.allclose(found.held_back.weights, torch.tensor(1.0 / len(text)))


def test_sites_together_or_alone_give_the_same(document, run):
    sites = sites_of(document.map)
    together, alone = run(sites), run(sites, alone=True)
    assert list(together) == list(alone)
    for name, found in together.items():
        assert torch.equal(alone[name].hessian, found.hessian)
        assert torch.equal(alone[name].fit.values, found.fit.values)
        assert torch.equal(alone[name].held_back.values, found.held_back.values)


def test_balance():
    assert Balance.of_counts(10, 40) == Balance(0.05, 0.0125)
    assert Balance.of_counts(10, 0) == Balance(0.1, 0.0)
    assert Balance.of_counts(0, 0) == Balance(0.0, 0.0)


def test_waves_keep_order_and_hold_at_least_one_site(document, monkeypatch):
    sites = sites_of(document.map)
    assert collect.waves(sites, torch.device("cpu")) == [sites]
    monkeypatch.setattr(collect, "_WAVE_BYTES", 1)
    assert collect.waves(sites, torch.device("cpu")) == [[site] for site in sites]
