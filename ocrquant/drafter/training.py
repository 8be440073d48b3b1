"""Training of a drafter on cached features: run it again to go on.

Owns optimisers, checkpoints and the log. A checkpoint holds everything (weights, optimiser state, generator,
steps done) and is replaced as a whole. Knows features; runs no target.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.artifacts.atomic import atomic_path
from ocrquant.distributed import ranks
from ocrquant.drafter.acceptance import lengths, measure_acceptance
from ocrquant.drafter.batching import Batch, anchor_places, collate, plan_batches
from ocrquant.drafter.config import DrafterConfig
from ocrquant.drafter.folder import load_drafter, save_drafter
from ocrquant.drafter.model import DraftModel
from ocrquant.drafter.objective import block_loss
from ocrquant.drafter.store import FeatureFile, TargetSequence, shard_files
from ocrquant.drafter.target import TargetEnds
from ocrquant.errors import PagesError

__all__ = ["Schedule", "Trainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long and how fast.

    Attributes:
        num_steps: Updates in all; the rate rises over the first part and falls to zero at the end.
        muon_rate: Learning rate of the matrices of the layers.
        adam_rate: That of all else.
        warm_up: Part of the steps over which the rate rises.
        max_rows: Tokens of a batch, of context and of blocks.
        max_anchors: Blocks of a sequence.
        decay: See `objective.slot_weights`.
        seed: Of order, anchors and fresh weights.
    """

    num_steps: int
    muon_rate: float = 2e-2
    adam_rate: float = 5e-3
    warm_up: float = 0.04
    max_rows: int = 6144
    max_anchors: int = 16
    decay: float = 7.0
    seed: int = 0

    def factor(self, step: int) -> float:
        """What the rates are multiplied by."""
        rise = self.warm_up * self.num_steps
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1.0, self.num_steps - rise))))


def optimizers(model: nn.Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers and the fusion of features, AdamW for everything else."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and ("layers." in name or name.startswith("fc."))
        (matrices if is_matrix and "kernel_projection" not in name else others).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=schedule.muon_rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=schedule.adam_rate, betas=(0.9, 0.95), weight_decay=0.01),
    ]


@dataclass(slots=True)
class _Passes:
    """Where a run stands among its data: whole passes, and batches of the present one."""

    done: int = 0
    batches: int = 0


class Trainer:
    """One drafter in training.

    Args:
        config: Of the drafter.
        ends: Embedding and head of its target.
        features: Folders of cached features.
        heldout: Sequences to measure acceptance on.
        out: Folder of the run.
        schedule: How long and how fast.
        start: Drafter whose weights are taken over as far as they go: DFlash2 begins as its DFlash.
        device: Where to compute.
        say: Takes a line of progress.
    """

    def __init__(
        self,
        config: DrafterConfig,
        ends: TargetEnds,
        features: Sequence[Path],
        heldout: Iterable[TargetSequence],
        out: Path,
        schedule: Schedule,
        *,
        start: Path | None = None,
        device: str = "cpu",
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.out, self.schedule, self.device = out, schedule, torch.device(device)
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(schedule.seed)
        self.model = DraftModel(config)
        if start is not None:
            self._take_over(start)
        self.model.to(self.device)
        self.embedding, self.head = ends.embedding, ends.head.to(self.device)
        self.heldout, self._features, self._say = heldout, features, say
        self.optimizers = optimizers(self.model, schedule)
        self._rates = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.num_done = 0
        self._passes = _Passes()
        self._resume()

    def _take_over(self, start: Path) -> None:
        found = self.model.load_state_dict(load_drafter(start).state_dict(), strict=False)
        assert not found.unexpected_keys, "a drafter begins as one of the same sizes"

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.num_done = saved["num_done"]
        self._passes = _Passes(**saved["passes"])

    def save(self) -> None:
        """Writes the checkpoint, and the drafter as it is now; the first of several processes does so."""
        if not ranks().is_first:
            return
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "num_done": self.num_done,
            "passes": asdict(self._passes),
        }
        with atomic_path(self.out / "checkpoint.pt") as temporary:
            torch.save(state, temporary)
        save_drafter(self.model, self.out / "drafter")

    def train(self, *, save_every: float = 300.0, log_every: int = 100) -> None:
        """Goes on until the schedule is over.

        Each of several processes takes a batch of its own in every step, and their gradients are averaged.

        Args:
            save_every: Seconds between checkpoints, each with a measurement of acceptance.
            log_every: Steps between lines of the log.
        """
        began = saved = time.monotonic()
        sums: list[tuple[float, float]] = []
        while self.num_done < self.schedule.num_steps:
            files = [FeatureFile(path) for folder in self._features for path in shard_files(folder)]
            block_rows = self.schedule.max_anchors * self.model.config.block_size
            draw = self._draw(self._passes.done, 0)
            order = list(plan_batches(files, self.schedule.max_rows, block_rows, draw))
            here = ranks()
            if len(order) < here.count:
                fix = "take more pages, or fewer processes"
                raise PagesError(
                    "pages to learn from", expected=f"{here.count} batches", given=len(order), fix=fix
                )
            for first in range(self._passes.batches, len(order) - here.count + 1, here.count):
                places = order[first + here.index]
                sums.append(self._step(self._batch([files[f][i] for f, i in places])))
                self.num_done += 1
                self._passes.batches += here.count
                if self.num_done % log_every == 0:
                    self._log(sums, time.monotonic() - began)
                    sums = []
                is_over = self.num_done >= self.schedule.num_steps
                if here.is_first and (is_over or time.monotonic() - saved > save_every):
                    self.save()
                    self._log_acceptance()
                    saved = time.monotonic()
                if is_over:
                    return
            self._passes = _Passes(self._passes.done + 1)

    def _draw(self, number: int, purpose: int) -> torch.Generator:
        """Random numbers by their place in the run alone: one that goes on draws what it would have drawn."""
        return torch.Generator().manual_seed(self.schedule.seed + 2 * number + purpose)

    def _batch(self, sequences: Sequence[TargetSequence]) -> Batch:
        here = ranks()
        anchors, generator = [], self._draw(self.num_done * here.count + here.index, 1)
        for sequence in sequences:
            places = anchor_places(sequence)
            order = torch.randperm(len(places), generator=generator)[: self.schedule.max_anchors]
            anchors.append(places[order.sort().values])
        batch = collate(sequences, anchors, self.embedding, self.model.config)
        return batch.to(self.device)

    def _step(self, batch: Batch) -> tuple[float, float]:
        factor = self.schedule.factor(self.num_done)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.zero_grad(set_to_none=True)
        # Products in bf16, weights and sums in fp32; the losses see fp32 logits.
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden = self.model(batch.blocks)
            unary, selected = block_loss(self.model, hidden, self.head, batch, self.schedule.decay)
        loss: Tensor = unary if selected is None else unary + selected
        loss.backward()
        ranks().average([p.grad for p in self.model.parameters() if p.grad is not None])
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        return unary.item(), float("nan") if selected is None else selected.item()

    def _log(self, sums: Sequence[tuple[float, float]], seconds: float) -> None:
        if not ranks().is_first:
            return
        unary, selected = (sum(column) / len(sums) for column in zip(*sums, strict=True))
        self._write(
            {"step": self.num_done, "loss": unary, "selector": selected, "seconds": round(seconds, 1)}
        )

    def _log_acceptance(self) -> None:
        self.model.eval()
        found = measure_acceptance(self.model, self.heldout, self.embedding, self.head.cpu())
        self.model.train()
        values = {name: round(value, 3) for name, value in lengths(found).items()}
        self._write({"step": self.num_done, "acceptance": values})

    def _write(self, record: dict[str, Any]) -> None:
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._say(_line(record))


def _line(record: dict[str, Any]) -> str:
    """A record of the log for people."""
    if "acceptance" in record:
        shown = ", ".join(f"{name} {value:.2f}" for name, value in record["acceptance"].items())
        return f"step {record['step']:,}: tokens a step on held-out pages: {shown}"
    selector = "" if math.isnan(record["selector"]) else f", selector {record['selector']:.3f}"
    return f"step {record['step']:,}: loss {record['loss']:.3f}{selector}, {record['seconds']:.0f} s"
