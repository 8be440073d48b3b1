"""Arms of a model that the runtime does not run: its Hugging Face model with each plan simulated in it.

All arms share one model in memory; a plan is in it only while its own arm computes. The chosen plan is read
from the exported folder, weights, norms and scales, as a server would. Knows models and plans. Does not know
what is made of the texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from functools import partial as bind
from pathlib import Path

import torch
import transformers
from torch import Tensor

from ocrquant.adapters import DocumentModel, PageInput, load_model
from ocrquant.artifacts import KvScales, LinearsRecord, Rounding, RuntimeRecord, sha256_data
from ocrquant.checkpoint import StoredCheckpoint
from ocrquant.engine.scoring import MAX_LOGITS, Piece
from ocrquant.evaluate.arms import ArmPlan
from ocrquant.evaluate.readers import NamedMakers, Output, Reader
from ocrquant.evaluate.truth import Tokens, Truth
from ocrquant.formats import Precision
from ocrquant.pages import Page, page_image
from ocrquant.simulate import SimulatedLinear, Smoothing, apply_plan, rounded_linears, rounded_smoothing

__all__ = ["SimulatedArms", "SimulatedReader"]

READS = {Precision.BF16: "plain", Precision.FP8: "fp8", Precision.NVFP4: "nvfp4"}
"""Activations of a simulated linear, as the runtime names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A plan, ready to be put into the model.

    Attributes:
        linears: Quantized linears by name.
        smoothing: New weights of what is not quantized.
        kv: Scales of FP8 caches.
    """

    linears: Mapping[str, SimulatedLinear]
    smoothing: Smoothing | None = None
    kv: Sequence[KvScales] = ()


class SimulatedReader:
    """One arm.

    Args:
        document: The model, shared with the other arms.
        make: Makes the plan when it is first needed; None for bf16.
    """

    def __init__(self, document: DocumentModel, make: Callable[[], Simulation] | None) -> None:
        self._document = document
        self._make = make

    @cached_property
    def _plan(self) -> Simulation | None:
        return None if self._make is None else self._make()

    def _applied(self) -> AbstractContextManager[None]:
        plan = self._plan
        if plan is None:
            return nullcontext()
        return apply_plan(self._document.model, plan.linears, smoothing=plan.smoothing, kv=plan.kv)

    def transcribe(self, pages: Sequence[Page], max_new_tokens: int) -> dict[str, Output]:
        """See `readers.Reader`."""
        asked = [PageInput(page_image(page), page.kind, None, page.id) for page in pages]
        with self._applied():
            found = self._document.transcribe(asked, max_new_tokens, len(asked))
        return {
            page.id: {"text": text.text, "num_tokens": text.num_tokens, "finished": text.finished}
            for page, text in zip(pages, found, strict=True)
        }

    def score(self, pages: Sequence[Page], truths: Mapping[str, Truth]) -> Iterator[Piece]:
        """See `readers.Reader`; between two pieces the model is as it was, for another arm to compute."""
        longest = max(truths[page.id].length for page in pages)
        size = max(1, MAX_LOGITS // (longest * self._num_logits))
        for first in range(0, len(pages), size):
            part = pages[first : first + size]
            for row, logits in enumerate(self._logits(part, truths)):
                yield Piece(first + row, 0, logits)

    @torch.no_grad()
    def _logits(self, pages: Sequence[Page], truths: Mapping[str, Truth]) -> list[Tensor]:
        document = self._document
        forced = [PageInput(page_image(p), p.kind, truths[p.id].forced, p.id) for p in pages]
        encoded = document.encode(forced)
        with self._applied():
            logits = document.logits(encoded)
        return [row[mask].float() for row, mask in zip(logits, encoded.answer_mask, strict=True)]

    @property
    def _num_logits(self) -> int:
        return int(self._document.model.config.get_text_config().vocab_size)

    def record(self, ops: Collection[str]) -> RuntimeRecord:
        """See `readers.Reader`."""
        plan, found = self._plan, self._document.map
        linears = {} if plan is None else plan.linears
        stored = Counter(
            linears[linear.name].precision if linear.name in linears else Precision.BF16
            for linear in found.linears()
        )
        return RuntimeRecord(
            device=_device_name(self._document.device),
            dtype=str(self._document.dtype).removeprefix("torch."),
            kernels="simulated",
            linears=[
                LinearsRecord(stored=p, asked=READS[p], reads=READS[p], count=count)
                for p, count in sorted(stored.items())
            ],
            kv_cache=Precision.FP8 if plan is not None and plan.kv else Precision.BF16,
        )


class _DocumentTokens:
    """Tokens of a document model, for truths."""

    def __init__(self, document: DocumentModel) -> None:
        self.encoder = document.encoder

    def num_tokens(self, width: int, height: int, kind: str) -> int:
        """Length of a sequence up to its answer."""
        return self.encoder.num_tokens(width, height, kind)

    def answer_ids(self, text: str) -> list[int]:
        """Tokens of an answer with the end token."""
        return self.encoder.answer_ids(text)


@dataclass(frozen=True, slots=True)
class SimulatedArms:
    """Where and how all arms run.

    Attributes:
        document: The unquantized model.
        rounding: The rounded weights.
        run: The run folder that holds them and the checkpoint.
    """

    document: DocumentModel
    rounding: Rounding
    run: Path

    @classmethod
    def load(
        cls,
        source: Path,
        device: torch.device,
        prompts: Mapping[str, str],
        rounding: Rounding,
        run: Path,
        *,
        allow_remote_code: bool,
        allow_generic: bool,
    ) -> SimulatedArms:
        """Loads the model in bf16.

        Raises:
            ModelError: See `ocrquant.adapters.load_model`.
        """
        document = load_model(
            source,
            device,
            prompts=prompts,
            allow_remote_code=allow_remote_code,
            allow_generic=allow_generic,
        )
        return cls(document, rounding, run)

    @property
    def tokens(self) -> Tokens:
        """Tokens of pages and answers."""
        return _DocumentTokens(self.document)

    def environment(self, batch_size: int, longest: int) -> str:
        """SHA-256 of what decides how numbers are rounded."""
        versions = [torch.__version__, transformers.__version__]
        return sha256_data(["simulated", _device_name(self.document.device), batch_size, *versions])

    def makers(self, plan: ArmPlan, batch_size: int, longest: int) -> NamedMakers:
        """What makes each arm when its turn comes."""
        made: dict[str, Callable[[], Simulation] | None] = {
            "bf16": None,
            "plan": bind(self._stored, self.run / plan.record.folder),
        }
        kv = tuple(self.rounding.kv) if plan.has_fp8_cache else ()
        made |= {name: bind(self._rounded, groups, kv) for name, groups in plan.groups.items() if groups}
        return [(name, bind(self._reader, made[name])) for name in plan.names]

    def _reader(self, make: Callable[[], Simulation] | None) -> Reader:
        return SimulatedReader(self.document, make)

    def _rounded(self, groups: Mapping[str, Precision], kv: Sequence[KvScales]) -> Simulation:
        with self.rounding.open_weights(self.run) as weights:
            linears = rounded_linears(self.rounding, weights, groups, device=self.document.device)
            smoothing = rounded_smoothing(weights) if linears else None
        return Simulation(linears=linears, smoothing=smoothing, kv=kv)

    def _stored(self, folder: Path) -> Simulation:
        """What the exported folder holds: quantized linears, and all other weights that smoothing changed."""
        device = self.document.device
        with StoredCheckpoint(folder) as stored:
            linears = {
                name: SimulatedLinear.of(stored.weight(name), stored.input_encode_scale(name), device=device)
                for name in stored.linears
            }
            changed = {
                name: stored.tensor(f"{name}.weight")
                for norm in self.rounding.norms
                if norm.accepted
                for name in (norm.norm, *norm.linears)
                if name not in linears
            }
            return Simulation(linears=linears, smoothing=Smoothing(norms=changed), kv=stored.kv)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
