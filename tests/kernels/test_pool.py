"""Threads of the extension: results, limits, and what another busy process costs."""

import multiprocessing
import statistics
import time

import pytest
import torch

from ocrquant.kernels.add import add
from ocrquant.kernels.extension import extension

NATIVE = extension()


@pytest.fixture(autouse=True)
def _threads():
    before = NATIVE.num_threads()
    yield
    NATIVE.set_num_threads(before)


def test_never_more_threads_than_cores():
    NATIVE.set_num_threads(9999)
    assert NATIVE.num_threads() == NATIVE.available_cores()
    NATIVE.set_num_threads(0)
    assert NATIVE.num_threads() == 1


def test_every_thread_count_gives_the_same_bits():
    a = torch.randn(64, 8192).to(torch.bfloat16)
    results = []
    for threads in range(1, NATIVE.available_cores() + 1):
        NATIVE.set_num_threads(threads)
        for _ in range(50):
            out = torch.zeros_like(a)
            add(a, a, out)
        results.append(out)
    assert all(torch.equal(results[0], other) for other in results)


def _burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.slow
def test_busy_cores_do_not_slow_it_below_one_thread():
    a, out = (torch.zeros(64, 1 << 15, dtype=torch.bfloat16) for _ in range(2))

    def median_seconds(threads: int) -> float:
        NATIVE.set_num_threads(threads)
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            add(a, a, out)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    burners = [
        multiprocessing.get_context("spawn").Process(target=_burn, args=(8.0,))
        for _ in range(NATIVE.available_cores())
    ]
    for burner in burners:
        burner.start()
    try:
        time.sleep(2.0)
        # Several rounds in turn, since the scheduler's mood is the largest effect here.
        ratios = [median_seconds(NATIVE.available_cores()) / median_seconds(1) for _ in range(5)]
    finally:
        for burner in burners:
            burner.terminate()
            burner.join()
    assert statistics.median(ratios) < 1.5, ratios
