"""Experts of a sparse layer as linears of their own, where `transformers` holds them in two large tensors.

Hooks, plans and names of checkpoints then meet an expert as they meet any other linear. The weights are views
of the tensors that were loaded, so nothing is copied. Knows modules; knows neither formats nor pages.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Expert", "Experts", "Routed", "split_experts"]


class Routed(nn.Module):
    """Where the input of all down projections of a layer can be watched, once a pass."""

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        """States [n, inner] of tokens [n], numbered over the whole batch; handed back as they are."""
        return states


class Expert(nn.Module):
    """One expert: three linears.

    Attributes:
        tokens: int64 [n], which tokens its linears see in the pass in progress, numbered over the batch.
    """

    tokens: Tensor | None = None

    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        super().__init__()
        inner = gate_up.shape[0] // 2
        self.gate_proj = _linear(gate_up[:inner])
        self.up_proj = _linear(gate_up[inner:])
        self.down_proj = _linear(down)


class Experts(nn.Module):
    """The experts of a layer under their numbers, with the arithmetic of the module they replace.

    Args:
        experts: A module with ``gate_up_proj`` [experts, 2 inner, hidden], ``down_proj`` [experts, hidden,
            inner] and ``act_fn``.
    """

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.num_experts = len(experts.gate_up_proj)
        self.act_fn = experts.act_fn
        self.routed = Routed()
        for number in range(self.num_experts):
            gate_up, down = experts.gate_up_proj.data[number], experts.down_proj.data[number]
            self.add_module(str(number), Expert(gate_up, down))

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Hidden states [n, hidden], and the experts of each with their weights [n, k] -> [n, hidden]."""
        found: list[tuple[Any, Tensor, Tensor]] = []
        states: list[Tensor] = []
        for number in range(self.num_experts):
            tokens, place = torch.where(top_k_index == number)
            if len(tokens):
                expert: Any = self.get_submodule(str(number))
                expert.tokens = tokens
                x = hidden_states[tokens]
                states.append(self.act_fn(expert.gate_proj(x)) * expert.up_proj(x))
                found.append((expert, tokens, place))
        output = torch.zeros_like(hidden_states)
        if not found:
            return output
        inner = self.routed(torch.cat(states), torch.cat([tokens for _, tokens, _ in found]))
        parts = inner.split([len(tokens) for _, tokens, _ in found])
        for (expert, tokens, place), part in zip(found, parts, strict=True):
            weighted = expert.down_proj(part) * top_k_weights[tokens, place, None]
            output = output.index_add(0, tokens, weighted.to(output.dtype))
        return output


def split_experts(model: nn.Module) -> None:
    """Replaces every module of fused experts of a model."""
    for name, module in list(model.named_modules()):
        fused = getattr(module, "gate_up_proj", None)
        if isinstance(fused, nn.Parameter) and fused.ndim == 3:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Experts(module))


def _linear(weight: Tensor) -> nn.Linear:
    rows, columns = weight.shape
    linear = nn.Linear(columns, rows, bias=False, device="meta", dtype=weight.dtype)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear
