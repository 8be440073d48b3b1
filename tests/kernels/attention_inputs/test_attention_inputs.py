"""Norm, rotary and cache writes against transformers and the formats, and which slots change."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers.models.paddleocr_vl import modeling_paddleocr_vl
from transformers.models.qwen3_5 import modeling_qwen3_5

from ocrquant.formats import fp8
from ocrquant.kernels.attention_inputs import attention_inputs
from ocrquant.kernels.attention_inputs.reference import attention_inputs_reference
from ocrquant.kernels.extension import extension
from ocrquant.kernels.program import capture

PAGES, PAGE_SIZE, EPS = 9, 4, 1e-6
OPS = pytest.mark.parametrize("op", [attention_inputs, attention_inputs_reference])


@dataclass
class Case:
    qg: Tensor
    kv: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    cos: Tensor
    sin: Tensor
    slots: Tensor
    heads: int
    kv_heads: int
    head_dim: int

    def run(self, op, cache_dtype=torch.bfloat16, k_scale=1.0, v_scale=1.0, fill=3.0):
        """out_q, k_cache, v_cache; both caches held `fill` before."""
        q = self.qg[..., : self.head_dim]
        k, v = self.kv.unflatten(1, (2, self.kv_heads, self.head_dim)).unbind(1)
        out = torch.full((q.shape[0], self.heads, self.head_dim), 9.0, dtype=q.dtype)
        shape = (PAGES, PAGE_SIZE, self.kv_heads, self.head_dim)
        caches = [torch.full(shape, fill).to(cache_dtype) for _ in "kv"]
        args = (self.q_norm, self.k_norm, EPS, self.cos, self.sin, self.slots, out, *caches, k_scale, v_scale)
        op(q, k, v, *args)
        return out, *caches


def case(rows=11, heads=4, kv_heads=2, head_dim=64, rotated=16, norm=True, dtype=torch.bfloat16) -> Case:
    torch.manual_seed(rows + head_dim)
    angle = torch.randn(rows, rotated // 2) * 50
    cos, sin = (x.to(dtype).to(torch.promote_types(dtype, torch.float32)) for x in (angle.cos(), angle.sin()))
    slots = torch.randperm(PAGES * PAGE_SIZE)[:rows].to(torch.int32)
    slots[3] = -1
    return Case(
        qg=(torch.randn(rows, heads, 2 * head_dim) * 3).to(dtype),
        kv=(torch.randn(rows, 2 * kv_heads * head_dim) * 2).to(dtype),
        q_norm=torch.randn(head_dim) * 0.2 if norm else None,
        k_norm=torch.randn(head_dim) * 0.2 if norm else None,
        cos=cos,
        sin=sin,
        slots=slots,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def by_transformers(c: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of every row, by the modules of transformers."""
    q = c.qg[..., : c.head_dim]
    k, v = c.kv.unflatten(1, (2, c.kv_heads, c.head_dim)).unbind(1)
    module = modeling_paddleocr_vl
    if c.q_norm is not None:
        module = modeling_qwen3_5
        norms = []
        for weight in (c.q_norm, c.k_norm):
            norm = module.Qwen3_5RMSNorm(c.head_dim, eps=EPS)
            norm.weight.data = weight
            norms.append(norm)
        with torch.no_grad():
            q, k = norms[0](q), norms[1](k)
    cos, sin = (torch.cat((x, x), dim=-1).to(q.dtype)[None] for x in (c.cos, c.sin))
    q, k = module.apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    return q[0].transpose(0, 1), k[0].transpose(0, 1), v


def rows_of(cache: Tensor, slots: Tensor) -> Tensor:
    return cache.flatten(0, 1)[slots[slots >= 0].long()]


@OPS
@pytest.mark.parametrize(("head_dim", "rotated"), [(64, 64), (128, 128), (72, 72)])
def test_has_the_bits_of_transformers_without_norms(op, head_dim, rotated) -> None:
    c = case(head_dim=head_dim, rotated=rotated, norm=False)
    q, k, v = by_transformers(c)
    out, k_cache, v_cache = c.run(op)
    assert torch.equal(out, q)
    assert torch.equal(rows_of(k_cache, c.slots), k[c.slots >= 0])
    assert torch.equal(rows_of(v_cache, c.slots), v[c.slots >= 0])


def test_the_reference_has_the_bits_of_transformers_with_norms() -> None:
    c = case(head_dim=256, rotated=64)
    q, k, _ = by_transformers(c)
    out, k_cache, _ = c.run(attention_inputs_reference)
    assert torch.equal(out, q)
    assert torch.equal(rows_of(k_cache, c.slots), k[c.slots >= 0])


@OPS
def test_with_norms_is_within_a_rounding_of_transformers(op) -> None:
    c = case(head_dim=256, rotated=64)
    q, k, _ = by_transformers(c)
    out, k_cache, _ = c.run(op)
    for got, wanted in ((out, q), (rows_of(k_cache, c.slots), k[c.slots >= 0])):
        # The sum of squares may be taken in another order, which moves a value across a tie now and then.
        assert (got != wanted).float().mean() < 5e-3
        assert torch.allclose(got.float(), wanted.float(), rtol=2.0**-6, atol=2.0**-7)


@OPS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_only_the_given_slots_change(op, dtype) -> None:
    c = case()
    for cache in c.run(op, dtype)[1:]:
        rest = torch.ones(PAGES * PAGE_SIZE, dtype=torch.bool)
        rest[c.slots[c.slots >= 0].long()] = False
        assert rest.sum() == PAGES * PAGE_SIZE - 10
        assert (cache.flatten(0, 1)[rest] == 3).all()
        assert not (cache.flatten(0, 1)[~rest] == 3).all(dim=(1, 2)).any()


@OPS
def test_fp8_codes_are_those_of_the_format(op) -> None:
    c = case(norm=False)
    c.kv[0, 0] = 1e4
    c.kv[1, -1] = -1e4
    c.kv[2, -2] = float("nan")
    _, keys, values = c.run(op)
    _, k_codes, v_codes = c.run(op, torch.uint8, k_scale=0.037, v_scale=0.011)
    for rows, codes, scale in ((keys, k_codes, 0.037), (values, v_codes, 0.011)):
        wanted = fp8.encode(rows_of(rows, c.slots), torch.tensor([scale])).view(torch.uint8)
        assert torch.equal(rows_of(codes, c.slots), wanted)


@OPS
def test_a_row_does_not_depend_on_the_others(op) -> None:
    c = case(head_dim=256, rotated=64)
    together = c.run(op)
    for i in range(c.qg.shape[0]):
        one = slice(i, i + 1)
        alone = Case(
            c.qg[one], c.kv[one], c.q_norm, c.k_norm, c.cos[one], c.sin[one], c.slots[one], 4, 2, 256
        ).run(op)
        assert torch.equal(alone[0], together[0][one])
        for single, batch in zip(alone[1:], together[1:], strict=True):
            assert torch.equal(rows_of(single, c.slots[one]), rows_of(batch, c.slots[one]))


def test_float64_is_kept() -> None:
    c = case(dtype=torch.float64, head_dim=64, rotated=64)
    out, k_cache, _ = c.run(attention_inputs, torch.float64)
    q = c.qg[..., :64]
    y = q / (q.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * (1 + c.q_norm.double())
    turned = torch.view_as_complex(torch.stack(y.chunk(2, dim=-1), dim=-1)) * torch.complex(
        c.cos, c.sin
    ).unsqueeze(1)
    assert torch.allclose(out, torch.cat((turned.real, turned.imag), dim=-1), rtol=1e-12, atol=1e-12)
    assert k_cache.dtype == torch.float64


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.uint8])
@pytest.mark.parametrize(
    ("head_dim", "rotated", "norm"),
    [(256, 64, True), (72, 72, True), (128, 128, False), (64, 32, True), (64, 64, True), (96, 48, True)],
)
def test_the_plain_build_has_the_same_bits(cache, head_dim, rotated, norm) -> None:
    c = case(head_dim=head_dim, rotated=rotated, norm=norm)
    scales = (0.03, 0.02) if cache == torch.uint8 else (1.0, 1.0)
    best = c.run(attention_inputs, cache, *scales)
    extension().force_isa("plain")
    try:
        plain = c.run(attention_inputs, cache, *scales)
    finally:
        extension().force_isa("auto")
    for one, other in zip(best, plain, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("scale", [1.0, 0.0371, 3.3e-30])
def test_every_bf16_value_gets_the_code_of_the_format(scale) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    rows = every.view(-1, 1, 256)
    count = rows.shape[0]
    caches = [torch.zeros(count, 1, 1, 256, dtype=torch.uint8) for _ in "kv"]
    cos, sin = torch.ones(count, 0), torch.zeros(count, 0)
    slots = torch.arange(count, dtype=torch.int32)
    out = torch.empty_like(rows)
    attention_inputs(rows, rows, rows, None, None, EPS, cos, sin, slots, out, *caches, scale, scale)
    wanted = fp8.encode(every[None], torch.tensor([scale])).view(torch.uint8).flatten()
    assert torch.equal(out.view(torch.int16), rows.view(torch.int16))
    for cache in caches:
        got = cache.flatten()
        nan = every.isnan()
        assert torch.equal(got[~nan], wanted[~nan])
        assert (got[nan] & 0x7F == 0x7F).all()


def test_a_program_follows_the_slots() -> None:
    c = case(rows=5)
    with capture() as program:
        out, k_cache, v_cache = c.run(attention_inputs)
    assert (out == 9).all()
    c.slots.copy_(torch.tensor([-1, 3, 7, 35, 0]))
    program.run()
    for got, wanted in zip((out, k_cache, v_cache), c.run(attention_inputs), strict=True):
        assert torch.equal(got, wanted)
