"""Drafters and cached answers of a size that tests can afford."""

import torch

from ocrquant.drafter.config import DFLASH, DrafterConfig
from ocrquant.drafter.store import TargetSequence

HIDDEN, VOCAB = 16, 12


def config(**changes):
    values = {
        "architectures": (DFLASH,),
        "block_size": 4,
        "target_layer_ids": (0, 2),
        "target_sha256": "0" * 64,
        "mask_token_id": 1,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "layer_types": ("full_attention", "full_attention"),
    }
    return DrafterConfig(**values | changes)


def second(**changes):
    return config(**changes).as_second(conv_group_size=4, rank=6, top_k=5)


def sequence(length=20, answer_start=6, seed=0, kind="line"):
    """A page whose features are noise."""
    generator = torch.Generator().manual_seed(seed)
    return TargetSequence(
        f"page-{seed}",
        kind,
        torch.randint(2, VOCAB, (length,), generator=generator),
        answer_start,
        torch.randn(length - 1, 2 * HIDDEN, generator=generator),
    )


def copied(length=16, seed=0):
    """A page whose features hold its answer: those of prompt token i name the i-th token of the answer."""
    generator = torch.Generator().manual_seed(seed)
    answer = torch.randint(2, VOCAB, (length,), generator=generator)
    tokens = torch.cat([torch.ones(length, dtype=torch.long), answer])
    features = torch.zeros(2 * length - 1, 2 * HIDDEN)
    features[:length, :VOCAB] = torch.nn.functional.one_hot(answer, VOCAB).float()
    return TargetSequence(f"copy-{seed}", "line", tokens, length, features)
