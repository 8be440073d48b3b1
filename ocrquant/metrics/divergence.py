"""How far one model's next-token distribution is from another's. Knows logits only."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.errors import ShapeError

__all__ = ["kl_from_logits"]


@torch.no_grad()
def kl_from_logits(reference: Tensor, other: Tensor, *, max_elements: int = 1 << 22) -> Tensor:
    """KL(reference || other) of the softmax distributions at each position, in nats.

    Summed as ``p * (log p - log q) + q - p``: the same number, since p and q both sum to one, but every term
    is >= 0 and the rounding of the two normalizers cancels to first order. In float32 over 248,320 tokens
    that is within 2e-7 of float64, the usual sum within 1e-6 only, and a good plan's divergences are not much
    larger.

    Args:
        reference: Logits [..., vocabulary], any float dtype; a logit of -inf masks a token out.
        other: Logits of the same shape.
        max_elements: Logits turned to float32 at a time. Some six float32 buffers of this size are alive at
            once, so the default keeps them to about 100 MiB whatever the length; a single row is never cut.

    Returns:
        float32 [...], >= 0; infinite where the reference gives weight to a token that ``other`` masks out;
        NaN where a row of logits holds NaN or +inf, or is masked out entirely.

    Raises:
        ShapeError: The shapes differ or have no vocabulary.
    """
    if reference.shape != other.shape or reference.ndim == 0 or reference.shape[-1] == 0:
        raise ShapeError(
            "logits to compare",
            expected=f"two tensors [..., vocabulary] of shape {list(reference.shape)}",
            given=list(other.shape),
            fix="compare the same positions and the same vocabulary",
        )
    vocabulary = reference.shape[-1]
    rows, other_rows = reference.reshape(-1, vocabulary), other.reshape(-1, vocabulary)
    result = torch.empty(len(rows), dtype=torch.float32, device=reference.device)
    step = max(1, max_elements // vocabulary)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        result[part] = _kl(rows[part].float(), other_rows[part].to(reference.device).float())
    return result.view(reference.shape[:-1])


def _kl(reference: Tensor, other: Tensor) -> Tensor:
    log_p, log_q = reference.log_softmax(-1), other.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    # Where p is 0 the product is 0 even if the difference is infinite or NaN.
    terms = log_p.sub_(log_q).mul_(p).masked_fill_(p == 0, 0.0).add_(q.sub_(p))
    return terms.sum(-1).clamp_(min=0.0)
