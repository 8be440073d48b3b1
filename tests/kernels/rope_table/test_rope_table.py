"""Tables of rotary positions against the embeddings of transformers, bit for bit, and against fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.paddleocr_vl.configuration_paddleocr_vl import (
    PaddleOCRTextConfig,
    PaddleOCRVisionConfig,
)
from transformers.models.paddleocr_vl.modeling_paddleocr_vl import (
    PaddleOCRRotaryEmbedding,
    PaddleOCRVisionRotaryEmbedding,
)
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from ocrquant.kernels.program import capture
from ocrquant.kernels.rope_table import rope_table
from ocrquant.kernels.rope_table.reference import rope_table_reference


def positions(rows: int, axes: int = 3, largest: int = 20_000) -> Tensor:
    torch.manual_seed(rows)
    return torch.randint(0, largest, (axes, rows), dtype=torch.int32)


def table(
    where: Tensor, inv_freq: Tensor, axis: list[int], dtype: torch.dtype, op=rope_table_reference
) -> tuple[Tensor, Tensor]:
    cos, sin = (torch.full((where.shape[1], inv_freq.numel()), 9.0) for _ in "cs")
    op(where, inv_freq, torch.tensor(axis, dtype=torch.int32), cos, sin, dtype)
    return cos, sin


def qwen() -> Qwen3_5TextRotaryEmbedding:
    rope = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    }
    return Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig(head_dim=256, rope_parameters=rope))


def paddle() -> PaddleOCRRotaryEmbedding:
    rope = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [16, 24, 24]}
    return PaddleOCRRotaryEmbedding(PaddleOCRTextConfig(head_dim=128, rope_parameters=rope))


def qwen_axis() -> list[int]:
    axis = [0] * 32
    for dim, section in ((1, 11), (2, 10)):
        axis[dim : section * 3 : 3] = [dim] * len(axis[dim : section * 3 : 3])
    return axis


@pytest.mark.parametrize(
    ("rotary", "axis"),
    [(qwen, qwen_axis()), (paddle, [0] * 16 + [1] * 24 + [2] * 24)],
    ids=["interleaved", "contiguous"],
)
def test_has_the_bits_of_the_text_models(rotary, axis) -> None:
    embedding, where = rotary(), positions(257)
    wanted = embedding(torch.zeros(1, dtype=torch.bfloat16), where.long().unsqueeze(1))
    got = table(where, embedding.inv_freq, axis, torch.bfloat16)
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(torch.cat((one, one), dim=-1), other[0].float())


def test_a_wrong_axis_is_seen() -> None:
    embedding, where = paddle(), positions(16)
    wanted, _ = embedding(torch.zeros(1, dtype=torch.bfloat16), where.long().unsqueeze(1))
    got, _ = table(where, embedding.inv_freq, [j % 3 for j in range(64)], torch.bfloat16)
    assert not torch.equal(got, wanted[0, :, :64].float())


def test_has_the_bits_of_the_vision_towers() -> None:
    embedding = PaddleOCRVisionRotaryEmbedding(PaddleOCRVisionConfig())
    where = positions(50, axes=2, largest=100)
    wanted = embedding(torch.zeros(1, dtype=torch.bfloat16), where.long().mT)
    count = embedding.inv_freq.numel()
    got = table(where, embedding.inv_freq.repeat(2), [0] * count + [1] * count, torch.float32)
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(torch.cat((one, one), dim=-1), other)


def test_by_hand() -> None:
    cos, sin = table(
        torch.tensor([[0, 1], [3, 0]], dtype=torch.int32), torch.tensor([1.0, 0.5]), [0, 1], torch.float32
    )
    assert torch.allclose(cos, torch.tensor([[1.0, 0.0707372], [0.5403023, 1.0]]))
    assert torch.allclose(sin, torch.tensor([[0.0, 0.9974950], [0.8414710, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_native_table_holds_the_nearest_values(dtype) -> None:
    embedding, where = qwen(), positions(2000)
    got = table(where, embedding.inv_freq, qwen_axis(), dtype, rope_table)
    angle = (where[qwen_axis()].float().mT * embedding.inv_freq).double()
    for one, exact in zip(got, (angle.cos(), angle.sin()), strict=True):
        assert torch.equal(one, exact.float().to(dtype).float())


@pytest.mark.parametrize("largest", [300_000, 30_000_000])
def test_far_positions_hold_the_nearest_values(largest) -> None:
    """Also beyond the angles that are reduced in registers."""
    where, inv_freq = positions(500, axes=1, largest=largest), 10000.0 ** -(torch.arange(20) / 20)
    got = table(where, inv_freq, [0] * 20, torch.float32, rope_table)
    angle = (where[[0] * 20].float().mT * inv_freq).double()
    for one, exact in zip(got, (angle.cos(), angle.sin()), strict=True):
        assert torch.equal(one, exact.float())


def test_the_native_table_is_that_of_the_text_models_but_for_ties() -> None:
    embedding, where = paddle(), positions(2000)
    axis = [0] * 16 + [1] * 24 + [2] * 24
    pairs = (
        table(where, embedding.inv_freq, axis, torch.bfloat16, op)
        for op in (rope_table, rope_table_reference)
    )
    for one, other in zip(*pairs, strict=True):
        assert (one != other).float().mean() < 1e-4
        assert torch.allclose(one, other, rtol=2.0**-7, atol=1e-6)


def test_other_dtypes_are_rounded_to() -> None:
    where, inv_freq = positions(9, axes=1), torch.tensor([1.0, 0.1])
    got = table(where, inv_freq, [0, 0], torch.float16, rope_table)
    assert torch.equal(got[0], got[0].half().float())
    assert not torch.equal(got[0], got[0].bfloat16().float())


def test_a_program_follows_the_positions() -> None:
    where, inv_freq, axis = (
        positions(4, axes=2),
        torch.tensor([1.0, 0.3]),
        torch.tensor([1, 0], dtype=torch.int32),
    )
    cos, sin = torch.zeros(4, 2), torch.zeros(4, 2)
    with capture() as program:
        rope_table(where, inv_freq, axis, cos, sin, torch.bfloat16)
    where.copy_(positions(4, axes=2) // 2)
    program.run()
    wanted = table(where, inv_freq, [1, 0], torch.bfloat16, rope_table)
    assert torch.equal(cos, wanted[0])
    assert torch.equal(sin, wanted[1])
