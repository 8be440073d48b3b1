"""Drafts of a running drafter are those of its definition, and the text is that without it."""

import json

import pytest
import torch

from ocrquant.adapters import model_folder
from ocrquant.engine import loading
from ocrquant.engine.cuda_device import no_waiting
from ocrquant.engine.drafter_folder import DrafterFolder
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import EngineError, ModelError
from tests.engine.drafters import SLIDING, Watch, make_drafter
from tests.engine.reading import prompts, read
from tests.engine.test_graphs import FilledDevice

PICO = model_folder("pico")
KINDS = {
    "first": {},
    "second": {"second": True},
    "sliding": {"second": True, **SLIDING},
    "by query": {**SLIDING, "window_lower": "query"},
    "causal": {**SLIDING, "window_lower": "query", "block_attention": "causal", "second": True},
}


def settings(**changes):
    return RuntimeSettings(**{"max_requests": 3, "max_length": 320, "page_size": 4} | changes)


@pytest.fixture(scope="module")
def expected():
    plain = load_runtime(PICO, settings(dtype="fp32"))
    asked = prompts(plain, "line", 4)
    return asked, read(plain, asked, max_tokens=12)


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_definition(tmp_path, expected, kind):
    model = make_drafter(tmp_path, PICO, **KINDS[kind])
    # Parts of prompts, pages that blocks cross, and requests at different places.
    runtime = load_runtime(
        PICO, settings(dtype="fp32", speculation="drafter", drafter=tmp_path, window=8, max_step_tokens=40)
    )
    watch = Watch(runtime, model, PICO)
    asked, answers = expected
    assert read(runtime, asked, max_tokens=12) == answers
    assert len(watch.drafts) > 30
    for found, chosen, logits, wanted in watch.drafts:
        assert found == chosen
        torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_in_bf16_differ_by_its_noise_only(tmp_path, kind):
    model = make_drafter(tmp_path, PICO, **KINDS[kind])
    plain = load_runtime(PICO, settings())
    asked = prompts(plain, "line", 4)
    answers = read(plain, asked, max_tokens=30)
    runtime = load_runtime(PICO, settings(speculation="drafter", drafter=tmp_path, window=8))
    watch = Watch(runtime, model, PICO)
    assert read(runtime, asked, max_tokens=30) == answers
    assert len(watch.drafts) > 60
    same = 0
    for found, chosen, logits, wanted in watch.drafts:
        error, spread = (logits - wanted)[1:].abs(), float(wanted[1:].std())
        assert float(error.max()) < 0.3 * spread
        assert float(error.mean()) < 0.06 * spread
        same += sum(a == b for a, b in zip(found, chosen, strict=True))
    # In a walk one near tie moves all that follow.
    assert same > (0.9 if model.selector is None else 0.75) * 7 * len(watch.drafts)


def test_kept_prefixes_carry_the_keys_of_the_drafter(tmp_path):
    model = make_drafter(tmp_path, PICO)
    runtime = load_runtime(
        PICO,
        settings(dtype="fp32", speculation="drafter", drafter=tmp_path, window=8, prefix_cache_bytes=1 << 24),
    )
    watch = Watch(runtime, model, PICO)
    asked = prompts(runtime, "line", 2)
    first = read(runtime, asked, max_tokens=6)
    # The features of what is not computed again are those of the first time.
    for number in range(2):
        watch.features[str(2 + number)] = watch.features[str(number)].clone()
    assert read(runtime, asked, max_tokens=6) == first
    assert runtime.engine.prefixes.num_hits == 2
    assert all(found == chosen for found, chosen, _, _ in watch.drafts)


def test_a_drafter_of_another_target_is_refused(tmp_path):
    make_drafter(tmp_path, PICO, target_sha256="0" * 64)
    with pytest.raises(ModelError, match="one made for 000000000000") as refused:
        load_runtime(PICO, settings(speculation="drafter", drafter=tmp_path))
    assert "ocrquant drafter train" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculation": "drafter"}, "engine.drafter"),
        ({"drafter": PICO}, "engine.drafter"),
        ({"speculation": "ngram", "drafter": PICO}, "engine.drafter"),
        ({"window": 0}, "engine.window"),
        ({"speculation": "beam"}, "engine.speculation"),
    ],
)
def test_settings_that_do_not_suit_one_another_are_refused(changes, message):
    with pytest.raises(EngineError, match=message):
        settings(**changes)


def test_a_window_longer_than_the_block_is_refused(tmp_path):
    make_drafter(tmp_path, PICO)
    with pytest.raises(EngineError, match="at most 8, the block of the drafter"):
        load_runtime(PICO, settings(speculation="drafter", drafter=tmp_path, window=9))


@pytest.mark.parametrize("damage", ["config", "weights", "missing", "shape"])
def test_damaged_folders_are_refused(tmp_path, damage):
    make_drafter(tmp_path, PICO)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    if damage == "config":
        config.write_text("{}")
    elif damage == "weights":
        weights.write_bytes(weights.read_bytes()[:100])
    elif damage == "missing":
        weights.unlink()
    else:
        config.write_text(json.dumps(json.loads(config.read_text()) | {"intermediate_size": 95}))
    with pytest.raises(ModelError):
        load_runtime(PICO, settings(speculation="drafter", drafter=tmp_path))


def test_what_a_folder_says_of_acceptance_is_the_prior(tmp_path):
    make_drafter(tmp_path, PICO)
    assert DrafterFolder(tmp_path).survival() is None
    ways = {
        "line": {"unary": {"length": 1.5, "steps": 3, "survival": [0.5, 0.1]}},
        "block": {
            "unary": {"length": 1.0, "steps": 1, "survival": [0.0]},
            "selected": {"length": 2.0, "steps": 1, "survival": [0.9, 0.5, 0.3]},
        },
    }
    (tmp_path / "acceptance.json").write_text(json.dumps(ways))
    found = DrafterFolder(tmp_path).survival()
    assert found == pytest.approx([(3 * 0.5 + 0.9) / 4, (3 * 0.1 + 0.5) / 4, 0.3 / 4])
    runtime = load_runtime(PICO, settings(speculation="drafter", drafter=tmp_path))
    assert runtime.engine.scheduler.windows.acceptance.survival(3) == pytest.approx(found)
    assert runtime.speculation_line().endswith("windows of 1 to 8 rows as measured")
    (tmp_path / "acceptance.json").write_text('{"line": {"unary": {"steps": 3}}}')
    with pytest.raises(ModelError, match="acceptance by kind of page"):
        DrafterFolder(tmp_path).survival()


def test_a_measured_window_reads_the_same(tmp_path):
    make_drafter(tmp_path, PICO)
    plain = load_runtime(PICO, settings())
    asked = prompts(plain, "line", 6)
    runtime = load_runtime(PICO, settings(speculation="drafter", drafter=tmp_path))
    assert read(runtime, asked, max_tokens=40) == read(plain, asked, max_tokens=40)
    assert runtime.statistics.drafts.num_windows > 0


def drafted(folder, **changes):
    """A runtime, its answers, and all that was proposed on the way, with what the slots alone proposed."""
    runtime = load_runtime(
        PICO, settings(speculation="drafter", drafter=folder, window=8, max_requests=6, **changes)
    )
    source = runtime.engine.scheduler.drafts
    found, propose = [], source.propose

    def watched(requests, most, tables):
        guesses = propose(requests, most, tables)
        found.append((len(requests), guesses, list(source.alone)))
        return guesses

    source.propose = watched
    keys = runtime.drafter.keys
    keys[:, -8:] = torch.nan  # pages of nobody: an engine of six requests does not get there
    answers = read(runtime, prompts(runtime, "line", 5), max_tokens=20)
    assert keys[:, -8:].isnan().all()
    return runtime, answers, found


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_drafted_by_batch_class_and_those_of_nobody_change_nothing(monkeypatch, tmp_path, kind):
    make_drafter(tmp_path, PICO, **KINDS[kind])
    exact, answers, expected = drafted(tmp_path)
    monkeypatch.setattr(loading, "open_device", FilledDevice)
    filled, same, found = drafted(tmp_path)
    assert same == answers
    assert found == expected
    counts = {count for count, _, _ in found}
    assert {3, 5} & counts, "no class of this engine has so many requests"
    assert set(exact.engine.scheduler.drafts._arenas) == {(count, 8) for count in counts}
    assert set(filled.engine.scheduler.drafts._arenas) == {(count, 8) for count in (1, 2, 4, 6)}


def test_blocks_of_nobody_are_forgotten_when_fewer_requests_run(monkeypatch, tmp_path):
    """What a larger number of requests left in the arrays must not be drafted again."""
    make_drafter(tmp_path, PICO, **KINDS["by query"])
    monkeypatch.setattr(loading, "open_device", FilledDevice)
    runtime, _, _ = drafted(tmp_path)
    arena = runtime.engine.scheduler.drafts._arenas[4, 8]
    for array in arena.host.values():
        array[...] = 7
    for prompt in prompts(runtime, "line", 3):
        runtime.engine.submit(prompt, SamplingParams(max_tokens=8, ignore_eos=True))
    while runtime.engine.has_work:
        runtime.engine.step()
    host = arena.host
    assert (host["slot_mapping"][3] == -1).all()
    assert (host["slot_mapping"][:3] >= 0).all()
    for name in ("kv_len", "page_table", "places"):
        assert not host[name][3:].any()
    for name in ("row_kv_len", "row_page_table", "first_key"):
        assert not host[name][24:].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["second", "by query"])
def test_drafts_on_a_gpu_are_replayed_and_wait_for_nothing_but_their_tokens(tmp_path, kind):
    make_drafter(tmp_path, PICO, **KINDS[kind])
    runtime = load_runtime(
        PICO,
        settings(speculation="drafter", drafter=tmp_path, window=8, max_requests=4, device="cuda:0"),
    )
    source = runtime.engine.scheduler.drafts
    assert set(source._arenas) == {(count, 8) for count in (1, 2, 4)}
    for prompt in prompts(runtime, "line", 3):
        runtime.engine.submit(prompt, SamplingParams(max_tokens=40, ignore_eos=True))
    while runtime.engine.scheduler.queue or runtime.engine.last_step.shape.prefill:
        runtime.engine.step()
    with no_waiting(torch.device("cuda:0")):
        for _ in range(3):
            runtime.engine.step()
    assert source._device.obstacle == ""
    assert set(source._arenas) == {(count, 8) for count in (1, 2, 4)}
