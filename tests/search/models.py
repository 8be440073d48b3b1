"""Small modules to search, and batches for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 64


class Mlp(nn.Module):
    """Three linears, one after another."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 96), nn.Linear(WIDTH, 96)
        self.down = nn.Linear(96, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        mixed = F.scaled_dot_product_attention(
            self.query(normed)[:, None],
            self.key(normed)[:, None],
            self.value(normed)[:, None],
            is_causal=True,
        )
        x = x + self.out(mixed[:, 0])
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Transformer(nn.Module):
    """Two blocks, an embedding and a head that is tied to it or not."""

    def __init__(self, vocabulary: int = 48, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def mlp(seed: int = 0) -> Mlp:
    torch.manual_seed(seed)
    return Mlp()


def transformer(*, tied: bool = False) -> Transformer:
    torch.manual_seed(0)
    return Transformer(tied=tied)


def rows(num_batches: int = 4, size: int = 12) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, WIDTH, generator=generator) for _ in range(num_batches)]


def tokens(num_batches: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 48, (2, 9), generator=generator) for _ in range(num_batches)]


def call(module: nn.Module, batch: Tensor) -> Tensor:
    """Logits."""
    return module(batch)


def losses(module: nn.Module, batch: Tensor) -> Tensor:
    """A loss for each sample, against a fixed target."""
    target = torch.arange(len(batch)) % 10
    return F.cross_entropy(module(batch), target, reduction="none")
