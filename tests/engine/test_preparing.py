"""Worker processes: what they load, that they bring every page or its error, and that none is left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ocrquant.engine.preparing import PageTask, WorkerPool, default_workers, make_preparer, prepare
from ocrquant.engine.preparing.process import WorkerProcess
from ocrquant.errors import EngineError
from ocrquant.pages import ImageRef
from tests.engine.pages_on_disk import ENCODER, ERRORS, bad_pages, good_pages, is_alive, picture
from tests.test_lean_import import heavy_modules_after

SECONDS = 60.0


def wait_for(condition, what):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def all_of(preparer, tasks):
    """Prepared pages by id."""
    for ticket, task in enumerate(tasks):
        preparer.submit(ticket, task)
    done = {}
    while (ready := preparer.take(wait=True)) is not None:
        assert ready[0] not in done, "a page comes once"
        done[ready[0]] = ready[1]
    return {tasks[ticket].id: prepared for ticket, prepared in done.items()}


@pytest.fixture
def pool():
    made = WorkerPool(ENCODER, 2)
    yield made
    made.close()


def test_a_page_is_prepared_without_torch(tmp_path: Path):
    (task,) = good_pages(tmp_path, 1)
    (tmp_path / "task").write_bytes(pickle.dumps((ENCODER, task)))
    code = f"""
import pickle
import ocrquant.engine.preparing.worker
from ocrquant.engine.preparing.task import prepare
assert prepare(*pickle.load(open({str(tmp_path / "task")!r}, "rb"))).error is None
"""
    more = "\nimport sys; assert not {'pyarrow', 'pydantic', 'tokenizers'} & set(sys.modules), sys.modules"
    assert heavy_modules_after(code + more) == set()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_a_running_worker_has_no_torch(pool, tmp_path: Path):
    all_of(pool, good_pages(tmp_path, 1))
    (process_id,) = pool.process_ids
    maps = Path(f"/proc/{process_id}/maps").read_text()
    assert "numpy" in maps
    assert "torch" not in maps


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_page_comes_once_and_as_it_would_here(workers, tmp_path: Path):
    tasks = good_pages(tmp_path, 9) + bad_pages(tmp_path)
    tasks += [
        PageTask("picture", picture(7), "page"),
        PageTask("bytes", (tmp_path / "good-0.png").read_bytes()),
    ]
    preparer = make_preparer(ENCODER, workers)
    done = all_of(preparer, tasks)
    preparer.close()
    assert {name: type(p.error).__name__ for name, p in done.items() if p.error} == ERRORS
    for task in tasks:
        expected, prepared = prepare(ENCODER, task), done[task.id]
        assert str(prepared.error) == str(expected.error)
        if prepared.encoded is not None:
            for field in ("tokens", "positions", "patches"):
                np.testing.assert_array_equal(
                    getattr(prepared.encoded, field), getattr(expected.encoded, field)
                )
            assert prepared.encoded.image_digest == expected.encoded.image_digest
            assert prepared.seconds > 0


def test_more_pages_than_a_pipe_holds_do_not_block_each_other(pool):
    """A picture is sent while an answer as large is waiting to be read."""
    large = [PageTask(str(number), picture(number, 400, 300), "page") for number in range(8)]
    assert all(p.error is None for p in all_of(pool, large).values())


class Stuck:
    """A page whose opening blocks until somebody writes to it."""

    def __init__(self, folder: Path):
        self.path = folder / "stuck.png"
        os.mkfifo(self.path)
        self.task = PageTask("stuck", ImageRef(self.path, "image"), "line")
        self._writers: list[int] = []

    def wait_until_opened(self):
        def is_open():
            try:
                self._writers.append(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                return False
            return True

        wait_for(is_open, "the worker never opened the page")

    def close(self):
        while self._writers:
            os.close(self._writers.pop())


@pytest.fixture
def stuck(tmp_path: Path):
    made = Stuck(tmp_path)
    yield made
    made.close()


@pytest.fixture
def single():
    made = WorkerPool(ENCODER, 1)
    yield made
    made.close()


def kill_worker(pool):
    (process_id,) = pool.process_ids
    os.kill(process_id, signal.SIGKILL)
    # Until it is buried its end of a pipe would pass for that of the next one.
    wait_for(lambda: process_id not in pool.process_ids, "a worker that does not die")
    return process_id


def test_the_page_of_a_killed_worker_is_tried_again(single, stuck, tmp_path: Path):
    tasks = [stuck.task, *good_pages(tmp_path, 3)]
    for ticket, task in enumerate(tasks):
        single.submit(ticket, task)
    stuck.wait_until_opened()
    picture(5).save(tmp_path / "mended.png")
    os.replace(tmp_path / "mended.png", stuck.path)
    first = kill_worker(single)
    done = dict(single.take(wait=True) for _ in tasks)
    assert [done[ticket].error for ticket in range(4)] == [None] * 4
    assert single.process_ids != [first]


def test_a_page_that_kills_two_workers_is_reported_and_the_others_come(single, stuck, tmp_path: Path):
    tasks = [*good_pages(tmp_path, 1), stuck.task, *good_pages(tmp_path, 3)]
    for ticket, task in enumerate(tasks):
        single.submit(ticket, task)
    for _ in range(2):
        stuck.wait_until_opened()
        kill_worker(single)
        stuck.close()
    done = dict(single.take(wait=True) for _ in tasks)
    assert [ticket for ticket in done if done[ticket].error] == [1]
    assert "stuck" in str(done[1].error)
    assert "SIGKILL" in str(done[1].error)


def test_a_worker_that_is_killed_while_it_starts_is_replaced(single, tmp_path: Path):
    single.submit(0, good_pages(tmp_path, 1)[0])
    wait_for(lambda: single.process_ids, "a worker")
    kill_worker(single)
    assert single.take(wait=True)[1].error is None


def test_a_worker_that_cannot_start_ends_everything(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("ocrquant.engine.preparing.process._PROGRAM", "raise SystemExit(7) or {path}")
    pool = WorkerPool(ENCODER, 1)
    pool.submit(0, good_pages(tmp_path, 1)[0])
    with pytest.raises(EngineError, match="exit code 7"):
        pool.take(wait=True)
    pool.close()


def test_a_task_that_cannot_be_sent_ends_everything(single):
    single.submit(0, PageTask("lambda", lambda: None, "line"))
    with pytest.raises(EngineError, match="lambda"):
        single.take(wait=True)


def test_closing_ends_all_workers_even_in_the_middle_of_a_page(stuck, tmp_path: Path):
    pool = WorkerPool(ENCODER, 2)
    for ticket, task in enumerate([stuck.task, *good_pages(tmp_path, 4)]):
        pool.submit(ticket, task)
    stuck.wait_until_opened()
    wait_for(lambda: len(pool.process_ids) == 2, "two workers")
    ids = pool.process_ids
    pool.close()
    assert not any(map(is_alive, ids))
    assert not any(thread.is_alive() for thread in pool._threads)


PARENT = """
import sys, pickle, time
from ocrquant.engine.preparing import WorkerPool
encoder, task = pickle.load(open({path!r}, "rb"))
pool = WorkerPool(encoder, 2)
try:
    for ticket in range(4):
        pool.submit(ticket, task)
    for _ in range(4):
        pool.take(wait=True)
    print(*pool.process_ids, flush=True)
    time.sleep({seconds})
finally:
    pool.close()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_no_worker_outlives_its_parent(how, tmp_path: Path):
    """The program has no guard around its main part: workers must not run it again."""
    (tmp_path / "task").write_bytes(pickle.dumps((ENCODER, good_pages(tmp_path, 1)[0])))
    program = tmp_path / "program.py"
    program.write_text(PARENT.format(path=str(tmp_path / "task"), seconds=SECONDS))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    parent = subprocess.Popen(
        [sys.executable, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    ids = [int(word) for word in parent.stdout.readline().split()]
    assert len(ids) == 2
    assert all(map(is_alive, ids))
    os.killpg(parent.pid, how)
    _, errors = parent.communicate(timeout=SECONDS)
    wait_for(lambda: not any(map(is_alive, ids)), "a worker is left")
    assert errors.count("Traceback") == (how == signal.SIGINT), errors


def test_a_worker_ends_when_its_pipe_closes():
    process = WorkerProcess()
    process.greet(ENCODER)
    assert process.end() == "exit code 0"
    assert not is_alive(process.id)


@pytest.mark.parametrize("number", [-1, 65])
def test_numbers_of_workers_out_of_range_are_refused(number):
    with pytest.raises(EngineError, match="workers"):
        make_preparer(ENCODER, number)


@pytest.mark.parametrize(
    ("device", "cores", "workers"),
    [("cpu", 1, 0), ("cpu", 2, 1), ("cpu", 64, 1), ("cuda:0", 1, 0), ("cuda", 2, 1), ("cuda:0", 4, 2)],
)
def test_default_number_of_workers(device, cores, workers):
    """Chosen on an AMD EPYC with 2 cores and AVX2, shared with other work, pico in bf16, 2026-11-30.

    Pages a second with 0, 1 and 2 workers, median of 5 (of 2 for pages), arms interleaved:

        requests  crops                      0       1       2
        1         lines                   7.38    7.46    7.37
        8         lines                  12.24   12.45   11.86
        1         blocks                  3.43    3.53    3.45
        8         blocks                  4.60    4.67    4.62
        1         2.2 million pixels      0.12    0.11    0.12
        8         2.2 million pixels      0.11    0.11    0.11

    CPU time of opening and encoding: 0.6 ms a line, 0.8 ms a block, 70 ms a page; of reading with 8 requests:
    61, 243 and 5,800 ms. So the number decides nothing on a CPU but what a page waits for another's opening.

    For a GPU no measurement of our own stands behind it. A published one of PaddleOCR-VL on an H200 (SGLang,
    pull request 35318) has 6.72, 9.55 and 8.92 pages a second with 1, 2 and 4 workers at 87 ms a page.
    """
    assert default_workers(device, cores) == workers


def test_default_looks_at_the_cores_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3}, raising=False)
    assert default_workers("cuda:0") == 0
