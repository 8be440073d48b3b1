"""torch's scaled product in plain arithmetic, behind torch's own checks of its arguments.

`torch.nn.functional.scaled_mm` multiplies E2M1 on GPUs only. Here its arguments first pass the checks that
torch registers for a CUDA device, on tensors without memory; then bytes are read where the layouts say, and
multiplied in float64.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64)
TENSOR, ROW, BLOCK = 0, 1, 2


def check(rows, columns, scales, kinds, orders, bias, dtype):
    """What torch would say to these arguments on a GPU."""
    with FakeTensorMode():

        def fake(tensor):
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

        sides = [[fake(scale) for scale in side] for side in scales]
        torch.ops.aten._scaled_mm_v2(
            fake(rows),
            fake(columns),
            sides[0],
            kinds[0],
            orders[0],
            sides[1],
            kinds[1],
            orders[1],
            None if bias is None else fake(bias),
            dtype,
        )


def nibbles(codes):
    """E2M1 values [R, 2 half] of codes [R, half], the even column in the low nibble."""
    raw = codes.view(torch.uint8).long()
    return VALUES[torch.stack([raw & 15, raw >> 4], -1).flatten(1)]


def block_scales(tiles, rows, columns):
    """[rows, columns] out of tiles of 128 x 4."""
    m, k = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    place = (m // 128 * -(-columns // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
    return tiles.flatten()[place].double()


def side(values, scales, kinds):
    """Rows of numbers [R, w] as the scales say."""
    if kinds[0] == BLOCK:
        width = values.shape[1] // 16
        values = values * block_scales(scales[0], len(values), width).repeat_interleave(16, 1)
        return values * scales[1].double() if len(scales) == 2 else values
    return values * (scales[0].double() if kinds[0] == TENSOR else scales[0].double().view(-1, 1))


def scaled_mm(rows, weight, row_scales, row_kinds, row_order, scales, kinds, order, bias, out):
    """In place of the call in `kernels.matmul.library`."""
    orders = (row_order, order)
    check(rows, weight.t(), (row_scales, scales), (row_kinds, kinds), orders, bias, out.dtype)
    assert out.is_contiguous()
    is_packed = rows.dtype == torch.float4_e2m1fn_x2
    left, right = (nibbles(t) if is_packed else t.double() for t in (rows, weight))
    sums = side(left, row_scales, row_kinds) @ side(right, scales, kinds).T
    out.copy_(sums if bias is None else sums + bias.double())
