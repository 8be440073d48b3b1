"""What moves when some tokens of a window are accepted: copies for all layers in one call each.

`commit_state` takes the state behind the last accepted token, `commit_tail` brings the inputs of the
convolution up to date. Knows nothing of who accepts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.selection import implementation
from ocrquant.kernels.window_commit.native import commit_state_native, commit_tail_native
from ocrquant.kernels.window_commit.reference import commit_state_reference, commit_tail_reference

__all__ = ["commit_state", "commit_tail"]

COPIED = (torch.bfloat16, torch.float32, torch.float64)


def _check_choice(contract: Contract, slots: Tensor, accepted: Tensor) -> None:
    contract.tensor("slots", slots, "N", torch.int32)
    contract.tensor("accepted", accepted, "N", torch.int32)


def commit_state(state: Tensor, states: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """See `commit_state_reference`; states are [layers, slots, T, H, K, V].

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("commit_state")
    contract.tensor("state", state, "layers slots H K V", None)
    contract.tensor("states", states, "layers slots T H K V", state.dtype)
    _check_choice(contract, slots, accepted)
    run = implementation("commit_state", state, commit_state_native, commit_state_reference, COPIED)
    run(state, states, slots, accepted)


def commit_tail(tail: Tensor, record: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """See `commit_tail_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("commit_tail")
    contract.tensor("tail", tail, "layers slots taps C", None)
    contract.tensor("record", record, "layers slots T C", tail.dtype)
    _check_choice(contract, slots, accepted)
    run = implementation("commit_tail", tail, commit_tail_native, commit_tail_reference, COPIED)
    run(tail, record, slots, accepted)
