"""Where ``OCRQUANT_KERNELS=cuda`` asks for them, the ops run these kernels; on a CPU emulated."""

from __future__ import annotations

import pytest
import torch

from ocrquant.errors import DeviceError
from ocrquant.kernels import cuda
from ocrquant.kernels.extension import extension
from ocrquant.kernels.extension import missing_reason as extension_missing
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.program import capture
from ocrquant.kernels.replay import Cursors, Records, move_cursors, replay_rows
from ocrquant.kernels.selection import CUDA_OPS, choices
from ocrquant.kernels.silu_mul import silu_mul
from ocrquant.kernels.silu_mul.reference import silu_mul_reference
from tests.kernels.cuda.making import needs_emulation
from tests.kernels.delta_making import GROUPS, HEADS, i32, rows

BF16 = torch.bfloat16


def test_every_op_named_is_there():
    assert all(callable(getattr(cuda, name)) for name in CUDA_OPS)


@needs_emulation
def test_the_variable_chooses_them(monkeypatch):
    monkeypatch.setenv("OCRQUANT_KERNELS", "cuda")
    gate_up = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).to(BF16)
    out, wanted = (Operand(plain=torch.empty(2, 32, dtype=BF16)) for _ in range(2))
    silu_mul(gate_up, out)
    silu_mul_reference(gate_up, wanted)
    assert choices()["silu_mul"].implementation == "cuda"
    assert choices()["silu_mul"].reason == "OCRQUANT_KERNELS=cuda, emulated"
    torch.testing.assert_close(out.plain, wanted.plain, rtol=2**-7, atol=0)


@needs_emulation
@pytest.mark.skipif(extension() is None, reason=extension_missing() or "built")
def test_a_program_cannot_record_what_is_emulated(monkeypatch):
    monkeypatch.setenv("OCRQUANT_KERNELS", "cuda")
    gate_up, out = torch.zeros(1, 32, dtype=BF16), Operand(plain=torch.empty(1, 16, dtype=BF16))
    with pytest.raises(DeviceError, match="op silu_mul inside a capture"), capture(gate_up, out):
        silu_mul(gate_up, out)


@needs_emulation
def test_the_variable_chooses_steps_too(monkeypatch):
    monkeypatch.setenv("OCRQUANT_KERNELS", "cuda")
    records = Records(
        torch.zeros(1, HEADS, 64, 64),
        torch.zeros(1, HEADS, 16, 64, dtype=BF16),
        torch.zeros(1, GROUPS, 16, 64, dtype=BF16),
        torch.zeros(1, HEADS, 16),
    )
    cursors = Cursors(*torch.zeros(4, 1, dtype=torch.int32), history=12, window=4)
    out = torch.empty(4, HEADS * 64, dtype=BF16)
    replay_rows(*rows(4, 64, 64), records, cursors, i32(0, 4), i32(0), out, GROUPS, accepted=False)
    move_cursors(cursors, 16, i32(0), accepted=i32(3))
    assert [choices()[op].implementation for op in ("replay_rows", "move_cursors")] == ["cuda", "cuda"]
    assert cursors.write_pos.tolist() == [3]
    assert records.log_gate[0, :, 0].lt(0).all()


def test_what_they_do_not_take_is_refused(monkeypatch):
    monkeypatch.setenv("OCRQUANT_KERNELS", "cuda")
    with pytest.raises(
        DeviceError, match=r"op silu_mul with OCRQUANT_KERNELS=cuda.* got dtype torch.float32"
    ):
        silu_mul(torch.zeros(1, 32), Operand(plain=torch.empty(1, 16)))
    monkeypatch.setattr(cuda, "missing_reason", lambda _: "no nvcc on this machine")
    with pytest.raises(DeviceError, match="got no nvcc on this machine"):
        silu_mul(torch.zeros(1, 32, dtype=BF16), Operand(plain=torch.empty(1, 16, dtype=BF16)))
