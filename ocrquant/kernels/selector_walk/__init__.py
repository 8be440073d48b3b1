"""Drafts of a block from the candidates of its slots."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import I32, Contract
from ocrquant.kernels.selection import implementation
from ocrquant.kernels.selector_walk.native import selector_walk_native
from ocrquant.kernels.selector_walk.reference import selector_walk_reference

__all__ = ["selector_walk"]


def selector_walk(
    logits: Tensor,
    gate: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    tokens: Tensor,
    block: int,
    top_k: int,
    out_tokens: Tensor,
    out_alone: Tensor,
) -> None:
    """See `selector_walk_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("selector_walk")
    contract.tensor("logits", logits, "R V", torch.float32)
    contract.tensor("gate", gate, "R rank", None, strided=True)
    contract.tensor("predecessor", predecessor, "V rank", gate.dtype)
    contract.tensor("successor", successor, "V rank", gate.dtype)
    for name, tensor in (("tokens", tokens), ("out_tokens", out_tokens), ("out_alone", out_alone)):
        contract.tensor(name, tensor, "R", I32)
    rows, vocabulary = logits.shape
    contract.require(1 <= top_k <= vocabulary, "top_k", f"1 to {vocabulary}", top_k)
    contract.require(block >= 1 and rows % block == 0, "block", "whole blocks of rows", block)
    run = implementation("selector_walk", gate, selector_walk_native, selector_walk_reference)
    run(logits, gate, predecessor, successor, tokens, block, top_k, out_tokens, out_alone)
