"""The kernels on a GPU: against references and the emulated source, repeated, in graphs, without waits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.formats import fp8, nvfp4
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.cuda import (
    convert,
    gated_rms_norm,
    move_cursors,
    quantize,
    replay_rows,
    silu_mul,
    small_linear,
    swizzle_scales,
)
from ocrquant.kernels.emit import emit
from ocrquant.kernels.gated_rms_norm.reference import gated_rms_norm_reference
from ocrquant.kernels.linear import pack
from ocrquant.kernels.linear.reference import linear_reference
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.replay import Cursors, Records
from ocrquant.kernels.replay.reference import move_cursors_reference, replay_rows_reference
from ocrquant.kernels.silu_mul.reference import silu_mul_reference
from tests.kernels.cuda.making import needs_emulation, needs_gpu
from tests.kernels.producing import bf16_steps

pytestmark = [pytest.mark.gpu, needs_gpu]

BF16 = torch.bfloat16
GPU = torch.device("cuda")
FORMS = ("fp8", "fp8_scale", "nvfp4", "nvfp4_scale", "nvfp4_swizzled")
# (H, G, K, V) of pico and of Qwen3.5-4B and 9B.
HEADS = {"pico": (4, 2, 64, 64), "qwen3.5": (32, 16, 128, 128)}


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def test_instructions_convert_as_the_portable_forms():
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(BF16).float()
    bits = torch.randint(-(2**31), 2**31, (2**20,), generator=torch.Generator().manual_seed(0))
    x = torch.cat([every, bits.int().view(torch.float32)]).to(GPU)
    number = ~x.isnan()
    found, portable = convert(x), convert(x, is_portable=True)
    assert torch.equal(found[0].view(torch.int16)[number], portable[0].view(torch.int16)[number])
    assert found[0][~number].isnan().all()
    assert torch.equal(found[1][number], portable[1][number])
    assert set((found[1][~number] & 0x7F).tolist()) == {0x7F}
    assert torch.equal(found[2], portable[2])


def operands(rows: int, width: int, *, static: bool, swizzles: bool) -> Operand:
    spec = OperandSpec(
        plain=True,
        fp8=True,
        fp8_decode_scale=torch.tensor([0.02], device=GPU) if static else None,
        nvfp4_encode_scale=torch.tensor([300.0], device=GPU),
        swizzles=swizzles,
    )
    out = spec.allocate(rows, width, BF16, GPU)
    for name in ("plain", *FORMS):
        if name != "fp8_static" and getattr(out, name) is not None:
            getattr(out, name).view(torch.uint8).fill_(0xFF)
    return out


def produce(name: str, rows: int, width: int, out: Operand, wanted: Operand) -> None:
    x, z = randn(rows, 2 * width).to(GPU), randn(rows, width, seed=1).to(GPU)
    if name == "silu_mul":
        silu_mul(x, out)
        silu_mul_reference(x, wanted)
    elif name == "gated_rms_norm":
        weight = randn(128, seed=2).float().to(GPU)
        gated_rms_norm(x[:, :width], z, weight, 1e-6, out)
        gated_rms_norm_reference(x[:, :width], z, weight, 1e-6, wanted)
    else:
        quantize(x[:, width:], out)
        emit(x[:, width:], wanted)


@pytest.mark.parametrize("name", ["quantize", "silu_mul", "gated_rms_norm"])
@pytest.mark.parametrize(("rows", "width"), [(1, 128), (33, 4096), (512, 12288)])
@pytest.mark.parametrize("is_for_gpu", [False, True])
def test_producers_equal_their_references(name: str, rows: int, width: int, is_for_gpu: bool):
    out, wanted = (operands(rows, width, static=is_for_gpu, swizzles=is_for_gpu) for _ in range(2))
    produce(name, rows, width, out, wanted)
    assert out.plain is not None
    assert wanted.plain is not None
    steps = bf16_steps(out.plain.cpu(), wanted.plain.cpu())
    assert int(steps.max()) <= 1
    assert float((steps > 0).float().mean()) <= 2e-4
    # Codes and scales are those of the rows as they were rounded, bit for bit.
    own = operands(rows, width, static=is_for_gpu, swizzles=is_for_gpu)
    emit(out.plain, own)
    for form in FORMS:
        if getattr(out, form) is not None:
            assert torch.equal(getattr(out, form), getattr(own, form)), form


@needs_emulation
@pytest.mark.parametrize("count", [1, 40])
def test_a_gpu_does_what_the_emulation_does(count: int):
    x, scale = randn(count, 4096), torch.tensor([300.0])
    spec = OperandSpec(fp8=True, nvfp4_encode_scale=scale, swizzles=True)
    here = spec.allocate(count, 4096, BF16, torch.device("cpu"))
    there = operands(count, 4096, static=False, swizzles=True)
    quantize(x, here)
    quantize(x.to(GPU), there)
    for form in ("fp8", "fp8_scale", "nvfp4", "nvfp4_swizzled"):
        assert torch.equal(getattr(here, form), getattr(there, form).cpu()), form
    codes = torch.randint(0, 256, (131, 7), dtype=torch.uint8)
    assert torch.equal(swizzle_scales(codes), swizzle_scales(codes.to(GPU)).cpu())


class Layer:
    """A pool of records and inputs of a step, in the dtype of the state."""

    def __init__(
        self, kind: str, requests: int, window: int, history: int, wide: torch.dtype = torch.float32
    ):
        self.heads, self.groups, self.key_dim, self.value_dim = HEADS[kind]
        self.requests, self.window, self.size = requests, window, 1 << (history - 1).bit_length()
        state = randn(requests, self.heads, self.key_dim, self.value_dim, seed=3).to(GPU, wide)
        u = torch.full((requests, self.heads, self.size, self.value_dim), torch.nan, dtype=BF16, device=GPU)
        k = torch.full((requests, self.groups, self.size, self.key_dim), torch.nan, dtype=BF16, device=GPU)
        gates = torch.full((requests, self.heads, self.size), torch.nan, dtype=wide, device=GPU)
        base, write_pos, flush, flushes = torch.zeros(4, requests, dtype=torch.int32, device=GPU)
        base += torch.arange(requests, device=GPU, dtype=torch.int32) % self.size
        flush.fill_(int(2 * window > history))
        self.records = Records(state, u, k, gates)
        self.cursors = Cursors(base, write_pos, flush, flushes, history=history, window=window)
        # Slots in another order than requests, one of them padding.
        self.slots = torch.randperm(requests, generator=torch.Generator().manual_seed(0)).int().to(GPU)
        self.slots[requests // 2] = -1
        self.starts = torch.arange(requests + 1, dtype=torch.int32, device=GPU) * window

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        rows = self.requests * self.window
        width = 2 * self.groups * self.key_dim + self.heads * self.value_dim
        a_log = torch.linspace(-4, 1, self.heads, device=GPU)
        parts = (randn(rows, width, seed=seed), *(randn(rows, self.heads, seed=seed + n) for n in (100, 200)))
        return (*(part.to(GPU) for part in parts), a_log, randn(self.heads, seed=7).float().to(GPU))

    def step(self, run, inputs: tuple[Tensor, ...]) -> Tensor:
        out = torch.full((len(inputs[0]), self.heads * self.value_dim), torch.nan, dtype=BF16, device=GPU)
        where = (self.records, self.cursors, self.starts, self.slots, out, self.groups)
        run(*inputs, *where, accepted=False)
        return out


@pytest.mark.parametrize(
    ("kind", "window", "history"),
    [("pico", 4, 12), ("pico", 16, 64), ("qwen3.5", 16, 64), ("qwen3.5", 8, 48)],
)
def test_replay_equals_the_definition(kind: str, window: int, history: int):
    layer, exact = Layer(kind, 5, window, history), Layer(kind, 5, window, history, torch.float64)
    generator = torch.Generator().manual_seed(1)
    for step in range(12):
        inputs = layer.inputs(step)
        out, wanted = layer.step(replay_rows, inputs), exact.step(replay_rows_reference, inputs)
        torch.testing.assert_close(out, wanted, rtol=2**-7, atol=1e-2)
        accepted = torch.randint(0, window + 1, (5,), generator=generator, dtype=torch.int32).to(GPU)
        move_cursors(layer.cursors, layer.size, layer.slots, accepted=accepted)
        move_cursors_reference(exact.cursors, layer.size, layer.slots, accepted=accepted)
        for name in ("base", "write_pos", "flush", "flushes"):
            assert torch.equal(getattr(layer.cursors, name), getattr(exact.cursors, name)), name
        torch.testing.assert_close(layer.records.state.double(), exact.records.state, rtol=1e-2, atol=1e-2)
    assert int(layer.cursors.flushes.sum()) > 2


def test_replay_equals_the_kernel_in_triton(monkeypatch):
    pytest.importorskip("triton")
    from ocrquant.kernels.replay import replay_rows as op

    monkeypatch.setenv("OCRQUANT_KERNELS", "triton")
    one, other = Layer("qwen3.5", 8, 16, 64), Layer("qwen3.5", 8, 16, 64)
    for step in range(6):
        inputs = one.inputs(step)
        out, wanted = one.step(replay_rows, inputs), other.step(op, inputs)
        torch.testing.assert_close(out, wanted, rtol=2**-7, atol=1e-2)
        accepted = torch.full((8,), 12, dtype=torch.int32, device=GPU)
        for layer in (one, other):
            move_cursors(layer.cursors, layer.size, layer.slots, accepted=accepted)


def test_the_same_step_gives_the_same_bits():
    """A race would show sooner or later."""
    first = None
    for _ in range(100):
        layer = Layer("qwen3.5", 16, 16, 64)
        layer.cursors.flush[::3] = 1
        out = layer.step(replay_rows, layer.inputs(0))
        found = (out, layer.records.state.clone())
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


@pytest.mark.parametrize("kind", ["nvfp4", "fp8"])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 4096, 4096), (16, 12288, 4096), (7, 100, 192)])
def test_small_products_equal_the_definition(kind: str, rows: int, outputs: int, inputs: int):
    weight = randn(outputs, inputs, seed=4).float()
    if kind == "nvfp4":
        packed = pack(nvfp4.quantize(weight), GPU)
    else:
        scale = fp8.weight_decode_scale(weight, "channel")
        packed = pack(FP8Weight(codes=fp8.encode(weight, scale), decode_scale=scale), GPU)
    x = randn(rows, inputs, seed=5).to(GPU)
    out, wanted = (torch.full((rows, outputs), torch.nan, device=GPU) for _ in range(2))
    small_linear(x, packed, out)
    linear_reference(Operand(plain=x), packed, wanted)
    torch.testing.assert_close(out, wanted, rtol=2e-3, atol=2e-3 * float(wanted.abs().max()))


def test_a_step_is_captured_and_never_waits():
    layer, gate_up = Layer("qwen3.5", 4, 16, 64), randn(64, 8192).to(GPU)
    out = operands(64, 4096, static=False, swizzles=True)
    inputs = layer.inputs(0)
    result = torch.empty(64, 32 * 128, dtype=BF16, device=GPU)
    accepted = torch.full((4,), 3, dtype=torch.int32, device=GPU)

    def step() -> None:
        silu_mul(gate_up, out)
        where = (layer.records, layer.cursors, layer.starts, layer.slots, result, layer.groups)
        replay_rows(*inputs, *where, accepted=False)
        move_cursors(layer.cursors, layer.size, layer.slots, accepted=accepted)

    step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            step()
        graph.replay()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    held = layer.cursors.write_pos[layer.slots[layer.slots >= 0].long()]
    assert held.tolist() == [6, 6, 6]  # the first step's, and the replay's
