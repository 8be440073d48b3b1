"""The gradient score: a second-order estimate of a group's KL, from one backward pass a batch.

Let g be the gradient of the loss with respect to the outputs of a group's linears at one position, and d the
error of these outputs when weights and activations are quantized. The score is half the sum of (g . d)^2 over
positions, a judged token.

Labels are drawn from the model's own distribution: the expectation of g g^T is then the Fisher information,
whose quadratic form is twice the KL divergence to second order (Martens, "New insights and perspectives on
the natural gradient method", 2020, section 8), and the gradients of different tokens' losses are
uncorrelated, so one backward pass over the sum of all losses adds up the tokens without cross terms. What is
left out are products of errors at different positions.

Against the measured KL of 66 candidates on 32 pages (a model of 4 million weights, 2026-11-30) the rank
correlation was 0.998, the sum of all scores 1.02 of the measured sum, the scatter of a score a factor of
1.13. Labels from the truth, which weigh the tokens that the model gets confidently wrong, gave 0.985, 1.27
and 1.34; products squared element by element before they are summed, as in other toolkits, 0.990, 0.81 and
1.25.

The pass goes block by block from the last one, each run again from its input, so that the graph of one block
is in memory at a time. Knows candidates and traces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.adapters.experts import Expert
from ocrquant.formats import Precision
from ocrquant.sensitivity.candidates import Candidate, RoundedCandidates
from ocrquant.sensitivity.replay import Trace
from ocrquant.simulate import SimulatedLinear, simulated_output

__all__ = ["GradientSums", "drawn_labels", "gradient_sums"]

GradientSums = dict[tuple[str, Precision], list[float]]
"""Group and format -> sum of the score over the tokens of each page."""


def gradient_sums(
    trace: Trace, candidates: Sequence[Candidate], rounded: RoundedCandidates, page_ids: Sequence[str]
) -> GradientSums:
    """The score of all candidates, summed over each page.

    Args:
        trace: The batch, seen by the unquantized model.
        candidates: What to score.
        rounded: Their weights.
        page_ids: Names of the pages, which seed the drawn labels.
    """
    errors = _Errors(trace, candidates)
    labels = drawn_labels(trace, page_ids)
    top = trace.num_blocks
    with errors.watch(top, rounded):
        gradient = _gradient_of_loss(trace, labels)
    for block in reversed(range(top)):
        hidden = trace.hidden.get(block).detach().requires_grad_()
        watched = errors.watch(block, rounded, hidden.shape[:2])
        with trace.document.resident_block(block), torch.enable_grad(), watched:
            (gradient,) = torch.autograd.grad(trace.run_block(block, hidden), hidden, gradient)
    return {key: sums.tolist() for key, sums in errors.sums.items()}


def _gradient_of_loss(trace: Trace, labels: Tensor) -> Tensor:
    """Gradient [B, T, hidden] of the sum of all losses with respect to the output of the last block."""
    hidden = trace.hidden.get(trace.num_blocks)
    rows = trace.judged(hidden)
    gradients: list[Tensor] = []
    for part in trace.parts:
        x = rows[part].detach().requires_grad_()
        with torch.enable_grad():
            log_p = trace.logits_of(x).float().log_softmax(-1)
            loss = -log_p.gather(1, labels[part, None]).sum()
            gradients += torch.autograd.grad(loss, x)
    gradient = torch.zeros_like(hidden)
    gradient.flatten(0, 1)[trace.rows] = torch.cat(gradients)
    return gradient


@torch.no_grad()
def drawn_labels(trace: Trace, page_ids: Sequence[str]) -> Tensor:
    """A next token for each judged position [n], drawn from the model's own distribution.

    The draw follows the name of the page, not the batch that it is in.
    """
    uniform = torch.cat(
        [_uniform(name, count) for name, count in zip(page_ids, trace.num_tokens, strict=True)]
    )
    uniform = uniform.to(trace.rows.device)
    found = []
    for part, logits in zip(trace.parts, trace.reference(), strict=True):
        cumulative = logits.double().softmax(-1).cumsum(-1)
        target = uniform[part, None] * cumulative[:, -1:]
        label = torch.searchsorted(cumulative, target, right=True).squeeze(1)
        found.append(label.clamp_(max=cumulative.shape[1] - 1))
    return torch.cat(found)


def _uniform(name: str, count: int) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class _Errors:
    """Output errors of the linears of a block, multiplied by the gradients as they come back."""

    def __init__(self, trace: Trace, candidates: Sequence[Candidate]) -> None:
        self._trace = trace
        self._candidates = candidates
        zero = torch.zeros(len(trace.num_tokens), dtype=torch.float64, device=trace.rows.device)
        self.sums = {(c.group, c.precision): zero.clone() for c in candidates}

    @contextmanager
    def watch(
        self, block: int, rounded: RoundedCandidates, shape: torch.Size | None = None
    ) -> Iterator[None]:
        """Scores the linears of a block during one forward and backward pass.

        Args:
            block: The block; the number of blocks for the head.
            rounded: The rounded weights.
            shape: [B, T] of the block's input; None for the head, which sees judged positions alone.
        """
        products: dict[tuple[str, Precision], list[Tensor]] = {}
        options: dict[str, list[tuple[list[Tensor], SimulatedLinear]]] = {}
        for candidate in self._candidates:
            if candidate.block == block:
                found = products.setdefault((candidate.group, candidate.precision), [])
                for name, linear in rounded.linears({candidate.group: candidate.precision}).items():
                    options.setdefault(name, []).append((found, linear))
        with ExitStack() as hooks:
            for name, quantized in options.items():
                module = self._trace.document.linear(name)
                expert = self._trace.document.module(name.rpartition(".")[0]) if "." in name else None
                multiply = _multiplying(quantized, shape, expert if isinstance(expert, Expert) else None)
                hooks.callback(module.register_forward_hook(multiply).remove)
            yield
        for key, found in products.items():
            # The head has one linear, seen once a part; a block's linears are seen once each, or not at all:
            # an expert that no token is sent to.
            product = torch.cat(found) if found[0].ndim == 1 else torch.stack(found).sum(0)
            self._add(self.sums[key], product.square() / 2)

    def _add(self, sums: Tensor, values: Tensor) -> None:
        """Adds values [B, T], or [n] at the head, to the sums [B] of the pages."""
        if values.ndim == 2:
            sums += values.sum(1, dtype=torch.float64)
        else:
            sums.index_add_(0, self._trace.page_of_row, values.double())


def _multiplying(
    quantized: Sequence[tuple[list[Tensor], SimulatedLinear]],
    shape: torch.Size | None,
    expert: Expert | None,
) -> Callable[..., None]:
    """A hook that adds (gradient . error) of each position to a list, for each way to quantize a linear."""

    def by_position(product: Tensor, tokens: Tensor | None) -> Tensor:
        if shape is None:
            return product
        if tokens is None:
            return product.reshape(shape)
        return product.new_zeros(shape.numel()).index_add_(0, tokens, product).view(shape)

    def hook(module: nn.Linear, arguments: tuple[Any, ...], output: Tensor) -> None:
        x, y = arguments[0].detach(), output.detach()
        tokens = None if expert is None else expert.tokens

        @torch.no_grad()
        def multiply(gradient: Tensor) -> None:
            for found, linear in quantized:
                error = simulated_output(x, linear, module.bias).float() - y.float()
                found.append(by_position((gradient.float() * error).sum(-1), tokens))

        output.register_hook(multiply)

    return hook
