"""The call into csrc/cpu/sample."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def sample_native(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    out_tokens: Tensor,
    out_gap: Tensor,
) -> None:
    """See `sample_reference`; on a CPU.

    Probabilities are float32 here and float64 there, so a draw within 1e-6 of the border between two tokens
    may fall on the other side.
    """
    native = extension()
    assert native is not None, "selection answers for it"
    rest = (x.data_ptr() for x in (temperature, top_p, seed, position, out_tokens, out_gap))
    native.sample((logits.data_ptr(), logits.stride(0)), *logits.shape, *rest)
