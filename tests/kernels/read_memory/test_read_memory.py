import pytest
import torch

from ocrquant.kernels.read_memory import read_memory
from ocrquant.kernels.read_memory.reference import read_memory_reference


@pytest.mark.parametrize("words", [0, 1, 31, 33, 1000, (1 << 17) * 5 + 7])
def test_every_word_counts(words):
    data = torch.randint(-(2**63), 2**63 - 1, (words,), generator=torch.Generator().manual_seed(words))
    out, expected = torch.ones(2, 1, dtype=torch.int64)
    read_memory(data, out)
    read_memory_reference(data, expected)
    assert torch.equal(out, expected)
    if words:
        before = out.clone()
        data[words // 2] ^= 5
        read_memory(data, out)
        assert (out ^ before).item() == 5
