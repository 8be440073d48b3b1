"""Drafters with random weights for models that tests read pages with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ocrquant.drafter.config import DFLASH, DrafterConfig
from ocrquant.drafter.folder import save_drafter
from ocrquant.drafter.model import Blocks, DraftModel, _heads, _rotary
from ocrquant.drafter.target import read_ends
from ocrquant.engine.loading import Runtime
from ocrquant.engine.plan import Plan, Sampled

SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 9}


def config_for(target: Path, *, second: bool = False, **changes: object) -> DrafterConfig:
    """A small drafter for a target."""
    ends = read_ends(target)
    vocab, hidden = ends.embedding.shape
    values = {
        "architectures": (DFLASH,),
        "block_size": 8,
        "target_layer_ids": (0, ends.num_layers - 2),
        "target_sha256": ends.sha256,
        "mask_token_id": 3,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "layer_types": ("full_attention", "full_attention"),
    }
    made = DrafterConfig(**values | changes)
    return made.as_second(conv_group_size=16, rank=24, top_k=6) if second else made


def random_drafter(config: DrafterConfig, seed: int = 0) -> DraftModel:
    """Weights that make every part of a drafter count, in bf16 as they are stored."""
    torch.manual_seed(seed)
    model = DraftModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif "codebook" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
            elif "base_kernel" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return model.to(torch.bfloat16).float().eval()


def make_drafter(folder: Path, target: Path, *, second: bool = False, **changes: object) -> DraftModel:
    """Writes such a drafter and gives its definition."""
    model = random_drafter(config_for(target, second=second, **changes))
    save_drafter(model, folder)
    return model


class Watch:
    """Compares a running drafter with its definition, from the features that the target gave.

    Args:
        runtime: With a drafter.
        model: The definition of that drafter, float32.
        target: Folder of the target.

    Attributes:
        drafts: What was proposed, with what the definition gives: (found, expected, logits, expected logits).
    """

    def __init__(self, runtime: Runtime, model: DraftModel, target: Path) -> None:
        ends = read_ends(target)
        self.runtime, self.model, self.embedding, self.head = runtime, model, ends.embedding, ends.head
        self.features: dict[str, torch.Tensor] = {}
        self.drafts: list[tuple[list[int], list[int], torch.Tensor, torch.Tensor]] = []
        self._run, self._propose = runtime.runner.run, runtime.engine.scheduler.drafts.propose
        runtime.runner.run = self.run
        runtime.engine.scheduler.drafts.propose = self.propose

    def run(self, plan: Plan) -> Sampled:
        """Keeps the features of all rows of a step."""
        parts = [(w.request, w.request.num_computed, plan.shape.window) for w in plan.drafted]
        parts += [(request, request.num_computed, 1) for request in plan.decode]
        parts += [(chunk.request, chunk.start, chunk.num_rows) for chunk in plan.prefill]
        sampled, row = self._run(plan), 0
        rows = self.runtime.model.feature_rows.float()
        for request, start, count in parts:
            empty = torch.zeros(self.runtime.engine.config.max_positions, rows.shape[1])
            self.features.setdefault(request.id, empty)[start : start + count] = rows[row : row + count]
            row += count
        return sampled

    @torch.no_grad()
    def propose(self, requests, most, tables):
        """What was proposed, after the comparison."""
        found, drafter = self._propose(requests, most, tables), self.runtime.drafter
        logits = drafter._space.view(len(requests) * (1 + most)).rows(drafter._logits)
        for number, request in enumerate(requests):
            known = request.num_computed
            tokens = torch.full((1 + most,), self.model.config.mask_token_id)
            tokens[0] = request.output_ids[-1]
            context, anchor = self.features[request.id][None, :known], torch.tensor([[known]])
            hidden = self.model(Blocks(context, anchor, self.embedding[tokens][None, None]))[0, 0]
            expected = hidden @ self.head.T
            chosen = expected[1:].argmax(-1)
            if self.model.selector is not None:
                chosen = self.model.selector.walk(expected[None, 1:], hidden[None, 1:], tokens[:1])[0]
            own = logits[number * (1 + most) : (number + 1) * (1 + most)]
            self.drafts.append((list(found[number]), chosen.tolist(), own.clone(), expected))
            self.check_keys(request, tables)
        return found

    def check_keys(self, request, tables) -> None:
        """Keys and values of the whole context in the pages against those made from all features at once."""
        drafter, model, known = self.runtime.drafter, self.model, request.num_computed
        context = model.hidden_norm(model.fc(self.features[request.id][:known]))
        places = np.arange(known)
        size = self.runtime.engine.config.page_size
        pages = torch.from_numpy(tables.drafter.pages[request.slot][places // size]).long()
        tolerance = 1e-3 if drafter.keys.dtype == torch.float32 else 0.05
        for number, layer in enumerate(model.layers):
            attention = layer.self_attn
            turned = _rotary(torch.from_numpy(places), model.config)
            keys = _heads(attention.k_norm, attention.k_proj(context), attention.width, turned)
            values = attention.v_proj(context).unflatten(-1, (-1, attention.width))
            for cache, rows in ((drafter.keys, keys.transpose(0, 1)), (drafter.values, values)):
                held = cache[number][pages, torch.from_numpy(places % size)].float()
                torch.testing.assert_close(held, rows, rtol=tolerance, atol=tolerance)
