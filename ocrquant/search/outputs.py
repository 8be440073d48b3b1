"""What a caller's function gives for a batch, logits or losses, and how two of them are compared.

A tensor of at most one axis holds losses, one or one a sample; of more axes it holds logits, the vocabulary
(or the classes) last. Knows tensors; knows no module and no format.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.errors import ModelError
from ocrquant.metrics.divergence import kl_from_logits

__all__ = ["Output", "read_output"]


@dataclass(frozen=True, slots=True)
class Output:
    """Logits [n, vocabulary], or losses [n], of one batch."""

    values: Tensor

    @property
    def is_logits(self) -> bool:
        """Whether these are logits."""
        return self.values.ndim == 2

    @property
    def count(self) -> int:
        """Predictions, or losses."""
        return len(self.values)

    @torch.no_grad()
    def distance(self, other: Output) -> float:
        """How far another output of the same batch is, summed over the batch.

        KL(self || other) in nats for logits; for losses the absolute difference, since a change that lowers
        the loss of one sample by chance is as much of a change as one that raises it.

        Raises:
            ModelError: The form or the number of entries is another one, or a value is NaN or infinite.
        """
        if self.values.shape != other.values.shape:
            fix = "return the same entries for a batch each time"
            given = list(other.values.shape)
            raise ModelError("outputs of one batch", expected=list(self.values.shape), given=given, fix=fix)
        if self.is_logits:
            distances = kl_from_logits(self.values, other.values)
        else:
            distances = (other.values.to(self.values.device).double() - self.values.double()).abs()
        found = float(distances.double().sum())
        if not found < float("inf"):
            fix = "leave the group out, or mend the module"
            raise ModelError("output of the quantized module", expected="finite values", given=found, fix=fix)
        return found

    def objective(self, seed: int) -> Tensor:
        """A scalar to differentiate: losses are summed; for logits the labels are drawn from themselves.

        With drawn labels the expected square of the gradient is the Fisher information, whose quadratic form
        is twice the KL divergence to second order (Martens, "New insights and perspectives on the natural
        gradient method", 2020, section 8).

        Args:
            seed: Of the draw.
        """
        if not self.is_logits:
            return self.values.sum()
        log_p = self.values.float().log_softmax(-1)
        return -log_p.gather(1, _drawn(log_p.detach(), seed)).sum()


def read_output(found: object, *, is_logits: bool | None = None) -> Output:
    """Checks what a caller's function returned.

    Args:
        found: The return value.
        is_logits: What the batches before gave; None at the first one.

    Raises:
        ModelError: It is no tensor of floating point, holds nothing, or is of another kind than before.
    """
    fix = "return logits [..., vocabulary], losses [n] or one loss, the same kind for every batch"
    expected = "a tensor of logits or losses"
    if is_logits is not None:
        expected = "logits" if is_logits else "losses"
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.numel() == 0:
        given = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ModelError("output of the function", expected=expected, given=given, fix=fix)
    values = found.flatten(0, -2) if found.ndim > 1 else found.reshape(-1)
    output = Output(values)
    if is_logits is not None and output.is_logits != is_logits:
        given = f"a tensor {list(found.shape)}"
        raise ModelError("output of the function", expected=expected, given=given, fix=fix)
    return output


def _drawn(log_p: Tensor, seed: int) -> Tensor:
    """A class for each row [n, 1], by inverting the cumulative distribution."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(len(log_p), 1, dtype=torch.float64, generator=generator).to(log_p.device)
    cumulative = log_p.double().exp().cumsum(-1)
    label = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return label.clamp_(max=log_p.shape[1] - 1)
