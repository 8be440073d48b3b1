"""Pages through the engine: each once, whoever prepares them; bounded, in order of readiness, never stuck."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocrquant.adapters import model_folder
from ocrquant.engine import Engine, EngineConfig, PageTask, RuntimeSettings, SamplingParams, load_runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.transcriber import Transcriber
from ocrquant.errors import EngineError
from ocrquant.pages import ImageRef
from tests.engine.fakes import END, PIECES, FakeRunner, expected_answer
from tests.engine.pages_on_disk import ENCODER, ERRORS, bad_pages, good_pages, picture
from tests.engine.reading import CROPS, crops

ASKED = SamplingParams(max_tokens=12)


def make_runtime(**settings):
    config = EngineConfig(
        **{"max_positions": 64, "num_pages": 64, "page_size": 4, "max_requests": 4, "max_step_tokens": 24}
        | settings
    )
    runner = FakeRunner(config)
    engine = Engine(config, runner, (END,), PIECES)
    runner.pools = engine.pools
    return SimpleNamespace(engine=engine, processor=SimpleNamespace(encoder=ENCODER))


def expected_text(task):
    limit = 64 - len(prompt := page_prompt(ENCODER.encode(picture_of(task), task.kind)))
    return expected_answer(prompt, ASKED, limit)[1]


def picture_of(task):
    from ocrquant.pages.image import ref_image

    return ref_image(task.image, task.id) if isinstance(task.image, ImageRef) else task.image


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("policy", ["fcfs", "shortest"])
def test_every_page_comes_once_with_its_own_text_or_error(workers, policy, tmp_path: Path):
    good, bad = good_pages(tmp_path, 14), bad_pages(tmp_path)
    tasks = [*good[:3], *bad, *good[3:]]
    runtime = make_runtime(policy=policy)
    with Transcriber(runtime, workers) as transcriber:
        results = list(transcriber.read(tasks, ASKED))
    assert sorted(r.page.id for r in results) == sorted(t.id for t in tasks)
    for result in results:
        if result.page.id in ERRORS:
            assert type(result.error).__name__ == ERRORS[result.page.id]
            assert result.text == ""
            assert result.num_tokens == 0
            assert result.finish_reason is None
        else:
            assert result.error is None
            assert result.text == expected_text(result.page)
            assert 0 < result.first_token_seconds <= result.total_seconds
            assert result.prepare_seconds > 0
    runtime.engine.check_integrity()
    assert not runtime.engine.has_work


def test_the_engine_is_kept_full(tmp_path: Path):
    runtime = make_runtime(max_positions=256, num_pages=256)
    with Transcriber(runtime, 0) as transcriber:
        asked = SamplingParams(max_tokens=20, ignore_eos=True)
        assert len(list(transcriber.read(good_pages(tmp_path, 12), asked))) == 12
    shapes = runtime.engine._runner.steps
    running = [shape.num_requests for shape in shapes]
    first_full, last_full = running.index(4), len(running) - 1 - running[::-1].index(4)
    assert all(count == 4 for count in running[first_full : last_full + 1])
    # 12 pages, 4 at a time, of 20 tokens: with one step more for each three's prompts than without gaps.
    assert len(shapes) <= 3 * 20 + 12


@pytest.mark.parametrize("workers", [0, 1])
def test_few_pages_are_on_their_way_however_many_there_are(workers, tmp_path: Path):
    taken, num_done, most = 0, 0, 0
    runtime = make_runtime()
    (task,) = good_pages(tmp_path, 1)

    def pages():
        nonlocal taken, most
        for number in range(300):
            taken += 1
            most = max(most, taken - num_done)
            yield PageTask(str(number), task.image, task.kind)

    with Transcriber(runtime, workers) as transcriber:
        for _ in transcriber.read(pages(), SamplingParams(max_tokens=2)):
            num_done += 1
    assert num_done == 300
    assert most <= 2 * 4 + 1


@pytest.mark.parametrize("policy", ["fcfs", "shortest"])
def test_the_queue_limit_is_kept(policy, tmp_path: Path):
    runtime = make_runtime(queue_limit=1, policy=policy)
    most, queue = 0, runtime.engine.scheduler.queue
    push = queue.push

    def counting(request, step):
        nonlocal most
        push(request, step)
        most = max(most, queue.num_waiting)

    queue.push = counting
    with Transcriber(runtime, 0) as transcriber:
        results = list(transcriber.read(good_pages(tmp_path, 9), ASKED))
    assert [r.error for r in results] == [None] * 9
    assert most == 1


def test_what_the_engine_refuses_is_the_error_of_that_page(tmp_path: Path):
    runtime = make_runtime(max_positions=20)
    tasks = [*good_pages(tmp_path, 3), PageTask("long", picture(1, 64, 64), "page")]
    with Transcriber(runtime, 0) as transcriber:
        errors = {r.page.id: r.error for r in transcriber.read(tasks, ASKED)}
    assert [name for name, error in errors.items() if error] == ["long"]
    assert "at most 19 tokens" in str(errors["long"])


@pytest.mark.parametrize("workers", [0, 1])
def test_stopping_early_drops_the_rest_and_leaves_the_engine_clean(workers, tmp_path: Path):
    runtime = make_runtime()
    tasks = good_pages(tmp_path, 9)
    with Transcriber(runtime, workers) as transcriber:
        reading = transcriber.read(tasks, ASKED)
        next(reading)
        reading.close()
        assert not runtime.engine.has_work
        runtime.engine.check_integrity()
        assert runtime.engine.pools.num_free_pages == 64
        again = {r.page.id: r.text for r in transcriber.read(tasks, ASKED)}
    assert again == {task.id: expected_text(task) for task in tasks}


def test_an_engine_in_use_is_refused(tmp_path: Path):
    runtime = make_runtime()
    runtime.engine.submit(page_prompt(ENCODER.encode(picture(0), "line")), ASKED)
    with Transcriber(runtime, 0) as transcriber, pytest.raises(EngineError, match="no other requests"):
        next(transcriber.read(good_pages(tmp_path, 1)))


def test_steps_go_on_while_a_page_is_being_prepared(tmp_path: Path):
    """A page that never opens holds up nobody but the one that its worker was to take next."""
    fifo = tmp_path / "stuck.png"
    os.mkfifo(fifo)
    tasks = [PageTask("stuck", ImageRef(fifo, "image"), "line"), *good_pages(tmp_path, 6)]
    with Transcriber(make_runtime(), 2) as transcriber:
        reading = transcriber.read(tasks, ASKED)
        done = {next(reading).page.id for _ in range(5)}
        assert len(done - {"stuck"}) == 5
        reading.close()


def test_the_shipped_model_reads_the_same_whoever_prepares():
    runtime = load_runtime(model_folder("pico"), RuntimeSettings(max_requests=4))
    records = crops("line")[:6]
    tasks = [PageTask(r["file_name"], ImageRef(CROPS / r["file_name"], "image"), "line") for r in records]
    texts = []
    for workers in (0, 2):
        with Transcriber(runtime, workers) as transcriber:
            texts.append({r.page.id: r.text for r in transcriber.read(tasks, SamplingParams(max_tokens=64))})
    assert texts[0] == texts[1]
    exact = [r["file_name"] for r in records if texts[0][r["file_name"]] == r["text"]]
    assert len(exact) >= 3
