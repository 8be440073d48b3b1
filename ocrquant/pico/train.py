"""Training of pico: `python -m ocrquant.pico.train --corpus DIR --out RUN` (run it again to go on).

Stages come from `schedule`, losses from `objective`; this file owns optimisers, checkpoints and the log. A
checkpoint holds everything (weights, optimiser state, generator, crops seen) and is replaced atomically;
`RUN/log.jsonl` gets loss and held-out character error rate; `RUN/model` is an ordinary Hugging Face folder in
bf16.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

from ocrquant.pico import batches, corpus, evaluate, geometry, objective, schedule, tokenizer, workers
from ocrquant.pico.samples import Sample, SampleStream

TRAIN_LINES = ("lines-train.parquet", "web-lines-train.parquet")
TRAIN_BLOCKS = ("blocks-train.parquet", "web-blocks-train.parquet")
MUON_RATE = 4e-3
ADAM_RATE = 1.5e-3
POOL_SAMPLES = 512
# A block takes as long to write as several lines, and evaluation must not eat the time for training.
BLOCK_COST = 4
GREY_COPIES = geometry.CHANNELS * geometry.TEMPORAL_PATCH
NEAR_FULL_RANK = ("in_proj_b", "in_proj_a")


def count_rows(folder: Path, names: Sequence[str]) -> int:
    """Crops in some files of the corpus."""
    return sum(int(pq.read_metadata(folder / name).num_rows) for name in names)


def optimizers(model: nn.Module, head: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between embedding and head, AdamW for everything else.

    The patch kernel is summed over colour and time before use, so each of its copies receives the full
    gradient; its rate is divided by the number of copies.
    """
    matrices, others, patch = [], [], []
    for name, parameter in model.named_parameters():
        hidden = ".layers." in name or ".blocks." in name or ".merger." in name
        if "patch_embed.proj.weight" in name:
            patch.append(parameter)
        elif hidden and parameter.ndim == 2 and not any(part in name for part in NEAR_FULL_RANK):
            matrices.append(parameter)
        else:
            others.append(parameter)
    groups = [
        {"params": others, "lr": ADAM_RATE},
        {"params": patch, "lr": ADAM_RATE / GREY_COPIES},
        {"params": list(head.parameters()), "lr": ADAM_RATE},
    ]
    muon = torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.01)]


def _endless(stream: SampleStream, stage: schedule.Stage) -> Iterator[Sample]:
    while True:
        yield stream.draw(stage.mixture)


class Trainer:
    """Model, optimisers and data of one run folder."""

    def __init__(self, corpus_folder: Path, out: Path, device: str, seed: int, num_workers: int = 0) -> None:
        """Read the corpus, build or resume the run.

        `num_workers` further processes compute gradients (CPU only).
        """
        self.out, self.device, self.seed = out, torch.device(device), seed
        out.mkdir(parents=True, exist_ok=True)
        lines = [c for name in TRAIN_LINES for c in corpus.read_crops(corpus_folder / name, split="train")]
        blocks = [c for name in TRAIN_BLOCKS for c in corpus.read_crops(corpus_folder / name, split="train")]
        self.rng = np.random.default_rng(seed)
        self.heldout = {
            kind: corpus.read_crops(corpus_folder / name, split="heldout")
            for kind, name in evaluate.HELDOUT.items()
        }
        self.tokenizer = self._tokenizer(lines, blocks)
        token_ids = {token: self.tokenizer.convert_tokens_to_ids(token) for token in tokenizer.SPECIAL}
        torch.manual_seed(seed)
        self.model = geometry.build_model(token_ids).to(self.device)
        self.head = objective.ColumnHead().to(self.device)
        self.optimizers = optimizers(self.model, self.head)
        self.base_rates = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.crops = (lines, blocks)
        self.crops_seen = 0
        self._resume()
        self.pool = self._start_workers(num_workers) if num_workers else None

    def _start_workers(self, count: int) -> workers.GradientPool:
        pool = workers.GradientPool([*self.model.parameters(), *self.head.parameters()])
        pool.crops_seen.value = self.crops_seen

        def work(number: int) -> None:
            self.rng = np.random.default_rng([self.seed, number, self.crops_seen])
            for stage, batch in self._batches(lambda: int(pool.crops_seen.value)):
                self._backward(batch, stage)
                pool.add(len(batch.ids))

        workers.start(count, work)
        return pool

    def _batches(self, crops_seen: Callable[[], int]) -> Iterator[tuple[schedule.Stage, batches.Batch]]:
        """Endless batches of the stage in which `crops_seen()` falls, until the last stage is over."""
        collate = batches.Collator(self.tokenizer, self.rng)
        stream = SampleStream(*self.crops, self.rng)
        stage: schedule.Stage | None = None
        source: Iterator[batches.Batch] = iter(())
        while (current := schedule.stage_at(crops_seen())) is not None:
            if current is not stage:
                stage = current
                samples = _endless(stream, stage)
                source = batches.batches(
                    samples, collate, positions=stage.positions, pool=POOL_SAMPLES, corrupt=stage.corrupt
                )
            yield current, next(source)

    def _tokenizer(self, lines: list[corpus.Crop], blocks: list[corpus.Crop]) -> Any:
        path = self.out / "alphabet.json"
        if not path.exists():
            characters = tokenizer.alphabet(crop.text for crop in [*lines, *blocks])
            path.write_text(json.dumps(characters, ensure_ascii=False), encoding="utf-8")
        return tokenizer.build_tokenizer(json.loads(path.read_text(encoding="utf-8")))

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, map_location=self.device, weights_only=False)
        self.model.load_state_dict(saved["model"])
        self.head.load_state_dict(saved["head"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.rng.bit_generator.state = saved["rng"]
        self.crops_seen = saved["crops_seen"]

    def checkpoint(self, name: str = "checkpoint.pt") -> None:
        """Write everything to RUN/`name`, replacing the old file only when the new one is whole."""
        state = {
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": self.rng.bit_generator.state,
            "crops_seen": self.crops_seen,
        }
        partial = self.out / f"{name}.partial"
        torch.save(state, partial)
        os.replace(partial, self.out / name)

    def log(self, **row: Any) -> None:
        """Append one line to the log and print it."""
        line = json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()})
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def _backward(self, batch: batches.Batch, stage: schedule.Stage) -> objective.Losses:
        """Losses of one batch, and their gradients added to the parameters'."""
        with torch.autocast(self.device.type, torch.bfloat16):
            result = objective.losses(self.model, self.head, batch.to(self.device), with_text=stage.with_text)
        total = stage.column_weight * result.column
        if result.text is not None and result.place is not None:
            total = total + result.text + stage.place_weight * result.place
        total.backward()
        return result

    def step(self, batch: batches.Batch, stage: schedule.Stage) -> objective.Losses:
        """One optimiser step, with the gradients of the workers if there are any."""
        factor = schedule.rate_factor(self.crops_seen)
        for optimizer, rates in zip(self.optimizers, self.base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        result = self._backward(batch, stage)
        num_crops = len(batch.ids) if self.pool is None else self.pool.take(len(batch.ids))
        parameters = [p for p in [*self.model.parameters(), *self.head.parameters()] if p.grad is not None]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.crops_seen += num_crops
        if self.pool is not None:
            self.pool.crops_seen.value = self.crops_seen
        return result

    def run(
        self, *, until: int, log_every: int, save_seconds: float, evaluate_every: int, num_heldout: int
    ) -> None:
        """Train up to `until` crops in all."""
        last_save, next_log = time.monotonic(), self.crops_seen + log_every
        next_evaluation = self.crops_seen + evaluate_every
        window: list[objective.Losses] = []
        begun, at_log = time.monotonic(), self.crops_seen
        for stage, batch in self._batches(lambda: self.crops_seen):
            if self.crops_seen >= until:
                break
            window.append(self.step(batch, stage))
            if self.crops_seen >= next_log:
                self._log_window(stage, window, (self.crops_seen - at_log) / (time.monotonic() - begun))
                window, begun, at_log = [], time.monotonic(), self.crops_seen
                next_log += log_every
            if time.monotonic() - last_save > save_seconds:
                self.checkpoint()
                last_save = time.monotonic()
            if stage.with_text and self.crops_seen >= next_evaluation:
                self.evaluate(num_heldout)
                next_evaluation = self.crops_seen + evaluate_every
                begun, at_log = time.monotonic(), self.crops_seen
        self.checkpoint()

    def _log_window(self, stage: schedule.Stage, window: list[objective.Losses], rate: float) -> None:
        def mean(values: list[float]) -> float:
            known = [v for v in values if v == v]
            return sum(known) / len(known) if known else float("nan")

        row = {
            "crops": self.crops_seen,
            "stage": stage.name,
            "crops_per_s": rate,
            "column_loss": mean([float(r.column.detach()) for r in window]),
            "column_accuracy": mean([r.column_accuracy for r in window]),
        }
        if stage.with_text:
            row["text_loss"] = mean([float(r.text.detach()) for r in window if r.text is not None])
            row["place_loss"] = mean([float(r.place.detach()) for r in window if r.place is not None])
            row["text_accuracy"] = mean([r.text_accuracy for r in window])
        self.log(**row, lr_factor=schedule.rate_factor(self.crops_seen))

    def evaluate(self, num_crops: int) -> None:
        """Write RUN/model and log greedy CER on evenly spread held-out crops."""
        self.save_model()
        model = self.model.eval()
        for kind, crops in self.heldout.items():
            chosen = evaluate.spread(crops, num_crops if kind == "line" else max(1, num_crops // BLOCK_COST))
            longest = max(len(crop.text) for crop in chosen)
            score = evaluate.heldout_cer(
                model,
                self.tokenizer,
                geometry.build_image_processor(),
                chosen,
                kind,
                max_new_tokens=longest + 40,
            )
            self.log(
                crops=self.crops_seen,
                heldout=kind,
                cer=score["cer"],
                num_crops=len(chosen),
                seconds=score["seconds"],
            )
        model.train()

    def save_model(self) -> None:
        """Write RUN/model.

        Config, bf16 safetensors, tokenizer, image processor, chat template, generation config.
        """
        folder = self.out / "model"
        twin = geometry.build_model({t: self.tokenizer.convert_tokens_to_ids(t) for t in tokenizer.SPECIAL})
        twin.load_state_dict(self.model.state_dict())
        twin = twin.to(torch.bfloat16)
        twin.generation_config.do_sample = False
        twin.generation_config.max_new_tokens = 640
        twin.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        geometry.build_image_processor().save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--corpus", type=Path, default=os.environ.get("OCRQUANT_CORPUS"), help="folder of parquet files"
    )
    parser.add_argument("--out", type=Path, required=True, help="run folder; an existing one is resumed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument(
        "--workers", type=int, default=0, help="further processes that compute gradients on a CPU"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--until", type=int, default=schedule.total_crops(), help="stop after so many crops in all"
    )
    parser.add_argument("--log-every", type=int, default=2000, help="crops between log lines")
    parser.add_argument("--save-seconds", type=float, default=120.0)
    parser.add_argument(
        "--evaluate-every", type=int, default=15_000, help="crops between held-out evaluations"
    )
    parser.add_argument(
        "--num-heldout", type=int, default=96, help="held-out crops of each kind per evaluation"
    )
    options = parser.parse_args(arguments)
    if options.corpus is None:
        parser.error("--corpus is required (or set OCRQUANT_CORPUS)")
    torch.set_num_threads(options.threads)
    trainer = Trainer(options.corpus, options.out, options.device, options.seed, options.workers)
    trainer.run(
        until=options.until,
        log_every=options.log_every,
        save_seconds=options.save_seconds,
        evaluate_every=options.evaluate_every,
        num_heldout=options.num_heldout,
    )
    if trainer.crops_seen >= schedule.total_crops():
        trainer.evaluate(options.num_heldout)


if __name__ == "__main__":
    main()
