"""FlashInfer in plain arithmetic, behind the checks that FlashInfer 0.7.4 makes of its arguments.

The library computes on GPUs only. Bytes are read where its layouts say (`scaled`), and multiplied in float64.
"""

import types

import torch

from tests.kernels.matmul import scaled


def mm_fp4(
    a,
    b,
    a_descale,
    b_descale,
    alpha=None,
    out_dtype=torch.bfloat16,
    out=None,
    block_size=16,
    use_8x4_sf_layout=False,
    backend="auto",
    use_nvfp4=True,
    enable_pdl=True,
    *,
    batch_invariant=False,
):
    assert a.dtype == b.dtype == a_descale.dtype == b_descale.dtype == torch.uint8
    assert a.is_contiguous()
    assert b.t().is_contiguous(), "a weight is a column-major matrix"
    assert a.shape[1] == b.shape[0]
    rows, outputs, width = a.shape[0], b.shape[1], 2 * a.shape[1]
    assert width % 32 == outputs % 32 == 0
    padded = -(-width // 64) * 4
    assert a_descale.shape == (-(-rows // 128) * 128, padded)
    assert b_descale.shape == (padded, -(-outputs // 128) * 128)
    assert a_descale.is_contiguous()
    assert b_descale.t().is_contiguous()
    assert (alpha.dtype, alpha.numel()) == (torch.float32, 1)
    assert backend == "cudnn"
    assert (out_dtype, block_size, use_8x4_sf_layout, use_nvfp4) == (torch.bfloat16, 16, False, True)
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous()
    left, right = (
        scaled.nibbles(codes) * scales(tiles, len(codes), width)
        for codes, tiles in ((a, a_descale), (b.t(), b_descale.t()))
    )
    out.copy_(left @ right.T * alpha.double())
    return out


def scales(tiles, rows, width):
    raw = tiles.contiguous().view(torch.float8_e4m3fn)
    return scaled.block_scales(raw, rows, width // 16).repeat_interleave(16, 1)


def bmm_fp8(A, B, A_scale, B_scale, dtype, out=None, backend="cublas", *, batch_invariant=False):
    assert A.dtype == B.dtype == torch.float8_e4m3fn
    assert A.shape[0] == B.shape[0] == 1
    assert A.is_contiguous()
    assert B.transpose(-2, -1).is_contiguous(), "a weight is a column-major matrix"
    for scale in (A_scale, B_scale):
        assert (scale.dtype, scale.numel()) == (torch.float32, 1)
    assert dtype == out.dtype == torch.bfloat16
    assert out.is_contiguous()
    assert backend == "cudnn"
    out.copy_(A.double() @ B.double() * A_scale.double() * B_scale.double())
    return out


def module():
    """In place of the package."""
    made = types.ModuleType("flashinfer")
    made.mm_fp4, made.bmm_fp8 = mm_fp4, bmm_fp8
    return made
