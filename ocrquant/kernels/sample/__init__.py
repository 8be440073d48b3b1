"""Tokens from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import I32, Contract
from ocrquant.kernels.sample.native import sample_native
from ocrquant.kernels.sample.reference import sample_reference
from ocrquant.kernels.sample.stream import Purpose, uniform
from ocrquant.kernels.selection import implementation

__all__ = ["Purpose", "sample", "uniform"]


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    out_tokens: Tensor,
    out_gap: Tensor,
) -> None:
    """See `sample_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("sample")
    contract.tensor("logits", logits, "N V", torch.float32, strided=True)
    contract.require(logits.shape[1] > 0, "logits", "at least one column", 0)
    contract.tensor("temperature", temperature, "N", torch.float32)
    contract.tensor("top_p", top_p, "N", torch.float32)
    contract.tensor("seed", seed, "N 2", I32)
    contract.tensor("position", position, "N", I32)
    contract.tensor("out_tokens", out_tokens, "N", I32)
    contract.tensor("out_gap", out_gap, "N", torch.float32)
    run = implementation("sample", logits, sample_native, sample_reference, (torch.float32,))
    run(logits, temperature, top_p, seed, position, out_tokens, out_gap)
