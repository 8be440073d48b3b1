"""What all kernels of the gated delta rule ask of their rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_delta_rows.native import HEAD_MULTIPLE

FLOATS = (torch.float32, torch.float64)


def check_rows(
    contract: Contract,
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """Binds slots, H, K, V, R, N and C.

    Raises:
        ShapeError: An argument is not as `gated_delta_rows_reference` says.
    """
    contract.tensor("state", state, "slots H K V", FLOATS)
    heads, key_dim, value_dim = state.shape[-3:]
    contract.require(heads % key_heads == 0, "state", f"a multiple of {key_heads} heads", heads)
    contract.tensor("mixed", mixed, "R C", None, strided=True)
    width = 2 * key_heads * key_dim + heads * value_dim
    contract.require(mixed.shape[1] == width, "mixed", f"{width} columns, q | k | v", mixed.shape[1])
    for name, tensor in (("a", a), ("b", b)):
        contract.tensor(name, tensor, "R H", mixed.dtype, strided=True)
    for name, tensor in (("a_log", a_log), ("dt_bias", dt_bias)):
        contract.tensor(name, tensor, "H", None)
    contract.tensor("slots", slots, "N", torch.int32)
    contract.tensor("q_start", q_start, f"{len(slots) + 1}", torch.int32)
    contract.tensor("out", out, "R HV", mixed.dtype)
    contract.require(out.shape[1] == heads * value_dim, "out", f"{heads * value_dim} columns", out.shape[1])


def check_native(contract: Contract, state: Tensor, a_log: Tensor, dt_bias: Tensor) -> None:
    """What the compiled kernels ask beyond that.

    Raises:
        ShapeError: Another dtype than fp32, or heads that are not whole registers.
    """
    for name, tensor in (("state", state), ("a_log", a_log), ("dt_bias", dt_bias)):
        contract.require(tensor.dtype == torch.float32, name, torch.float32, tensor.dtype)
    for size in state.shape[-2:]:
        fits = size % HEAD_MULTIPLE == 0
        contract.require(fits, "state", f"head sizes that are multiples of {HEAD_MULTIPLE}", size)
