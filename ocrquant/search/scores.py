"""The two scores of a group in a format, for any module: from gradients, and measured.

The same definitions as for document models, see `ocrquant.sensitivity`, without a replay from the changed
block on: a plain module has no blocks to begin at. Knows modules and quantized linears; knows no budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ocrquant.errors import ModelError
from ocrquant.formats import Precision
from ocrquant.search.linears import TensorKey, tensor_key
from ocrquant.search.outputs import Output
from ocrquant.simulate import SimulatedLinear, apply_plan, simulated_output

__all__ = ["Candidates", "Key", "gradient_scores", "measured_scores", "undisturbed"]

Key: TypeAlias = tuple[str, Precision]
"""Group and format."""

Candidates: TypeAlias = Mapping[Key, Mapping[str, SimulatedLinear]]
"""What is scored: the quantized linears of each group in each format, by name."""

Run: TypeAlias = Callable[[], Output]
"""Calls the module on one batch."""


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode, through its submodules and not past them; afterwards as it was.

    The fused path of ``nn.TransformerEncoderLayer`` reads weights without calling its linears, so it is
    turned off.
    """
    training = {child: child.training for child in module.modules()}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        module.eval()
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for child, mode in training.items():
            child.training = mode


@torch.no_grad()
def measured_scores(module: nn.Module, run: Run, candidates: Candidates) -> dict[Key, float]:
    """Distance of the output with one group quantized, everything else as it is, summed over a batch.

    Args:
        module: The module.
        run: Calls it on the batch.
        candidates: What to score.

    Raises:
        ModelError: An output has another form than the reference, or is not finite.
    """
    reference = run()
    found = {}
    for key, linears in candidates.items():
        with apply_plan(module, linears):
            found[key] = reference.distance(run())
    return found


def gradient_scores(module: nn.Module, run: Run, candidates: Candidates, seed: int) -> dict[Key, float]:
    """Half the squared product of output gradient and output error, summed over the positions of a batch.

    Errors of linears of a group that read the same tensor are added up before they are squared, since they
    act at one position; those of different tensors are not, as products between positions are left out.

    Args:
        module: The module; none of its parameters gets a gradient.
        run: Calls it on the batch.
        candidates: What to score.
        seed: Of the labels that are drawn where the output is logits.

    Raises:
        ModelError: The output does not depend on any of the linears by a gradient.
    """
    options: dict[str, list[tuple[Key, SimulatedLinear]]] = {}
    for key, linears in candidates.items():
        for name, linear in linears.items():
            options.setdefault(name, []).append((key, linear))
    products: dict[tuple[Key, TensorKey], Tensor] = {}
    device = next(module.parameters()).device
    anchor = torch.zeros((), device=device, requires_grad=True)
    with torch.enable_grad(), ExitStack() as hooks:
        for name, quantized in options.items():
            hook = _tapping(quantized, products, anchor)
            hooks.callback(module.get_submodule(name).register_forward_hook(hook).remove)
        objective = run().objective(seed)
        if not objective.requires_grad:
            raise ModelError(
                "output of the function",
                expected="one that is differentiable, for gradient scores",
                given="one without a gradient",
                fix='do not disable gradients in the function, or ask for score="measured"',
            )
        torch.autograd.grad(objective, anchor)
    found = dict.fromkeys(candidates, 0.0)
    for (key, _), product in products.items():
        found[key] += float(product.double().square().sum()) / 2
    return found


def _tapping(
    quantized: Sequence[tuple[Key, SimulatedLinear]],
    products: dict[tuple[Key, TensorKey], Tensor],
    anchor: Tensor,
) -> Callable[..., Tensor]:
    """A hook that multiplies the gradient of a linear's output with the error of each way to quantize it."""

    def hook(module: nn.Linear, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        x, y = arguments[0].detach(), output.detach()
        place = tensor_key(x)

        @torch.no_grad()
        def multiply(gradient: Tensor) -> None:
            if tensor_key(x) != place:
                raise ModelError(
                    "input of a linear",
                    expected="left as it was read",
                    given="written into",
                    fix='let the module read a copy, or ask for score="measured"',
                )
            for key, linear in quantized:
                error = simulated_output(x, linear, module.bias).float() - y.float()
                product = (gradient.float() * error).sum(-1)
                before = products.get((key, place))
                products[key, place] = product if before is None else before + product

        return _tap(output, anchor, multiply)

    return hook


class _Tap(torch.autograd.Function):
    """Hands a gradient over on its way.

    The anchor is what is differentiated with respect to, so that no parameter gets a gradient and linears
    whose input and parameters need none are reached as well. A copy, since the module may write into it.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, multiply: Callable[[Tensor], None]) -> Tensor:
        ctx.multiply = multiply
        ctx.save_for_backward(anchor)
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.multiply(gradients[0])
        (anchor,) = ctx.saved_tensors
        return gradients[0], torch.zeros_like(anchor), None


_tap: Callable[..., Tensor] = _Tap.apply
