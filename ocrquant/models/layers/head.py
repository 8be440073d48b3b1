"""The two ends of a decoder: the table of token embeddings, and the final norm with the output product.

Knows that a model may tie both; knows no layer between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.errors import ModelError
from ocrquant.kernels.embed import embed
from ocrquant.kernels.linear import PackedWeight
from ocrquant.kernels.operand import Operand
from ocrquant.models.build import Build
from ocrquant.models.layers.linear import Linear
from ocrquant.models.layers.norm import NormRule, RmsNorm
from ocrquant.models.workspace import Scratch

__all__ = ["HEAD", "Head", "embedding_and_head"]

HEAD = "lm_head"


class Head:
    """Final norm and output head, on the rows whose logits are wanted.

    Args:
        build: What to make it from.
        norm: Name of the final norm.
        hidden: Width of the residual stream.
        eps: Of the norm.
        rule: Of the norm.
        product: The output product, which reads ``Head.OPERAND``.
    """

    OPERAND = "head.input"

    def __init__(
        self, build: Build, norm: str, hidden: int, eps: float, rule: NormRule, product: Linear
    ) -> None:
        self._norm = RmsNorm(build.reader, norm, hidden, eps, rule)
        self._product = product
        self._operand = build.linears.operand(self.OPERAND, hidden, product)
        self._stream = build.workspace.slot("head.stream", hidden)
        self._delta = build.workspace.slot("head.delta", hidden)

    def __call__(self, scratch: Scratch, stream: Tensor, delta: Tensor, rows: Tensor, logits: Tensor) -> None:
        """Picks rows, adds the last sublayer's output, norms and multiplies.

        Args:
            scratch: As many rows as logits.
            stream: [R, hidden], the residual stream.
            delta: [R, hidden], output of the last sublayer.
            rows: int32, the rows that are wanted.
            logits: float32 [wanted rows, vocab], written.
        """
        picked, picked_delta = scratch.rows(self._stream), scratch.rows(self._delta)
        embed(stream, rows, picked)
        embed(delta, rows, picked_delta)
        self._norm(picked, self.operand(scratch), picked_delta)
        self.project(scratch, logits)

    def operand(self, scratch: Scratch) -> Operand:
        """What the output product reads."""
        return scratch.operand(self._operand)

    def project(self, scratch: Scratch, logits: Tensor) -> None:
        """The output product alone.

        Args:
            scratch: As many rows as logits, with the operand.
            logits: float32 [rows, vocab], written.
        """
        self._product(scratch, logits)


def embedding_and_head(
    build: Build, embedding: str, vocab: int, hidden: int, *, tied: bool
) -> tuple[Tensor | PackedWeight, Linear]:
    """The table of token embeddings, and the output product; one weight in memory where the model ties both.

    Args:
        build: What to make them from.
        embedding: Name of the embedding.
        vocab: Rows of both.
        hidden: Columns of both.
        tied: What the configuration says.

    Raises:
        ModelError: The head is missing, or is there and differs from the embedding that it should equal.
    """
    if not tied:
        table = build.reader.take(f"{embedding}.weight", (vocab, hidden))
        return table, build.linears.make(HEAD, Head.OPERAND, [(HEAD, vocab)], hidden)
    weight = build.reader.take_linear(embedding, vocab, hidden)
    if not isinstance(weight, Tensor):
        fix = "export the model again"
        raise ModelError(embedding, expected="an unquantized weight", given=weight.precision, fix=fix)
    name = f"{HEAD}.weight"
    own = build.reader.take_linear(HEAD, vocab, hidden) if build.reader.has(name) else weight
    if not (isinstance(own, Tensor) and torch.equal(own, weight)):
        raise ModelError(
            name,
            expected="the weight of the embedding, since tie_word_embeddings is true",
            given="another one",
            fix="set tie_word_embeddings to false, or take the weights that belong to this configuration",
        )
    product = build.linears.of_weights(HEAD, Head.OPERAND, [(HEAD, weight)], {})
    (packed,) = product.weights
    return packed, product
