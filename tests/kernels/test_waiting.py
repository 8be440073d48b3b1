"""References that serve on GPUs look into no tensor: a step with them can be captured."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from ocrquant.kernels.add.reference import add_reference
from ocrquant.kernels.embed.reference import embed_reference
from ocrquant.kernels.paged_attention.reference import paged_attention_reference
from ocrquant.kernels.rope_table.reference import rope_table_reference

BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32


def empty(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype)


def embed():
    """Without images: steps with parts of prompts, which have them, are never captured on a GPU."""
    embed_reference(empty(64, 16), empty(5, dtype=I32), empty(5, 16))


def rope():
    table = empty(5, 4, dtype=torch.float32)
    rope_table_reference(
        empty(3, 5, dtype=I32), empty(4, dtype=torch.float32), empty(4, dtype=I32), table, table, BF16
    )


CALLS = {
    "add": lambda: add_reference(empty(5, 16), empty(5, 16), empty(5, 16)),
    "embed": embed,
    "rope_table": rope,
}


@pytest.mark.parametrize("name", CALLS)
def test_no_value_of_a_tensor_is_read(name):
    with FakeTensorMode():
        CALLS[name]()


def attention():
    q, cache = empty(2, 2, 16), empty(4, 4, 1, 16)
    starts, length, table = empty(3, dtype=I32), empty(2, dtype=I32), empty(2, 2, dtype=I32)
    paged_attention_reference(q, cache, cache, table, starts, length, 0.25, empty(2, 32))


def test_one_that_reads_values_is_seen():
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        attention()
