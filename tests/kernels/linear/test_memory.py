import gc
import sys
from pathlib import Path

import pytest
import torch

from ocrquant.kernels.linear.memory import zeros

LARGE = 4 << 20


@pytest.mark.parametrize("num_bytes", [0, 1, 100_000, LARGE, LARGE + 12345])
def test_memory_is_zero_and_can_be_written(num_bytes):
    memory = zeros(num_bytes)
    assert memory.shape == (num_bytes,)
    assert memory.dtype == torch.uint8
    assert not memory.any()
    memory.fill_(7)
    assert (memory == 7).all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_tensor_takes_its_memory_along():
    kept = [zeros(16 << 20)[1:].view(-1) for _ in range(10)]
    for one in kept:
        one[::4096] = 1
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    del kept, one
    gc.collect()
    assert resident - int(Path("/proc/self/statm").read_text().split()[1]) > 9 * (16 << 20) // 4096
