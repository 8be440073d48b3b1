"""The definition of the rule over rows: against Hugging Face's, in fp64, in chunks, beside neighbours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from ocrquant.kernels.gated_delta_rows.reference import gated_delta_rows_reference

GROUPS, HEADS, DIM = 2, 4, 16


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rows(count: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, ...]:
    """mixed, a, b, a_log, dt_bias."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(count, (2 * GROUPS + HEADS) * DIM, generator=generator, dtype=torch.float64)
    a, b = torch.randn(2, count, HEADS, generator=generator, dtype=torch.float64)
    a_log, dt_bias = torch.randn(2, HEADS, generator=generator, dtype=torch.float64)
    return mixed.to(dtype), a.to(dtype), b.to(dtype), a_log, dt_bias


def huggingface(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    mixed, a, b, a_log, dt_bias = inputs
    q, k, v = mixed.split([GROUPS * DIM, GROUPS * DIM, HEADS * DIM], -1)
    q, k = (x.reshape(1, -1, GROUPS, DIM).repeat_interleave(HEADS // GROUPS, 2) for x in (q, k))
    gate = -a_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    out, state = torch_recurrent_gated_delta_rule(
        q,
        k,
        v.reshape(1, -1, HEADS, DIM),
        g=gate[None],
        beta=b.sigmoid()[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return out[0].flatten(1), state[0]


def test_equals_transformers_in_bf16():
    inputs = rows(9, torch.bfloat16)
    state, out = torch.full((1, HEADS, DIM, DIM), float("nan")), torch.empty(9, HEADS * DIM).bfloat16()
    gated_delta_rows_reference(*inputs, state, i32(0, 9), i32(0), i32(1), out, GROUPS)
    wanted, wanted_state = huggingface(inputs)
    torch.testing.assert_close(out, wanted, rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(state[0], wanted_state, rtol=1e-5, atol=1e-6)


def test_chunks_and_neighbours_do_not_matter():
    inputs = rows(12, torch.float64)
    whole, state = torch.empty(12, HEADS * DIM).double(), torch.zeros(1, HEADS, DIM, DIM).double()
    gated_delta_rows_reference(*inputs, state, i32(0, 12), i32(0), i32(1), whole, GROUPS)
    pool = torch.full((3, HEADS, DIM, DIM), float("nan")).double()
    other = rows(2, torch.float64, seed=1)
    for start, stop in ((0, 5), (5, 6), (6, 12)):
        both = [torch.cat([x, y[start:stop]]) for x, y in zip(other[:3], inputs[:3], strict=True)]
        out = torch.empty(2 + stop - start, HEADS * DIM).double()
        starts, fresh = i32(0, 2, len(out)), i32(1, int(start == 0))
        gated_delta_rows_reference(*both, *inputs[3:], pool, starts, i32(0, 2), fresh, out, GROUPS)
        # Not bit for bit: torch takes exponentials of a short tensor by another routine than those of a long.
        torch.testing.assert_close(out[2:], whole[start:stop], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pool[2], state[0], rtol=1e-12, atol=1e-12)
    assert pool[1].isnan().all()


def test_beta_is_rounded_to_the_activations():
    # sigmoid(0.01) is 0.5025 in fp32 and 0.50390625 or 0.5 in bf16: with v = 1 the written value shows which.
    mixed = torch.zeros(1, 3 * DIM).bfloat16()
    mixed[0, 0] = mixed[0, DIM] = mixed[0, 2 * DIM] = 1.0
    a, b = torch.zeros(1, 1).bfloat16(), torch.full((1, 1), 0.01).bfloat16()
    state, out = torch.zeros(1, 1, DIM, DIM), torch.empty(1, DIM).bfloat16()
    gated_delta_rows_reference(
        mixed, a, b, torch.zeros(1), torch.zeros(1), state, i32(0, 1), i32(0), i32(1), out, 1
    )
    exact = torch.rsqrt(torch.tensor(1 + 1e-6)) * b.sigmoid().float()[0, 0]
    assert torch.equal(state[0, 0, 0, 0], exact)
    assert exact != torch.sigmoid(b.float())[0, 0]


def test_padding_comes_out_as_zeros():
    inputs = rows(2, torch.float32)
    state, out = torch.randn(1, HEADS, DIM, DIM), torch.ones(2, HEADS * DIM)
    before = state.clone()
    gated_delta_rows_reference(*inputs, state, i32(0, 2), i32(-1), i32(1), out, GROUPS)
    assert not out.any()
    assert torch.equal(state, before)
