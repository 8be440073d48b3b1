"""Ways to transcribe pages that benchmarks put side by side: `transformers` as its users call it, the engine.

Each takes decoded images and gives text; preprocessing is part of both. The modules of `transformers` are
left as they are, and so is ``generate``. Knows no clock of its own but that of the first token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from ocrquant.adapters.encoding import Encoded, PageEncoder, PageInput
from ocrquant.adapters.families import FAMILIES
from ocrquant.adapters.images import open_images
from ocrquant.bench.pages import BenchPage
from ocrquant.engine.loading import Runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.sampling import SamplingParams
from ocrquant.prompts import prompts_for

__all__ = ["Arm", "EngineArm", "Served", "TransformersArm"]

NOTE = (
    "transformers: AutoModelForImageTextToText.generate with its own modules, sdpa, greedy, left padding; "
    "tokenizer and image processor of transformers, joined here, since the family's Processor wants "
    "torchvision for videos"
)


@dataclass(frozen=True, slots=True)
class Served:
    """What one arm made of some pages.

    Attributes:
        texts: Their texts.
        ids: Their tokens, an end token left out.
        num_tokens: Tokens generated, end tokens counted.
        first_token_s: Seconds from an image in memory to its first token, by page.
    """

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    num_tokens: int
    first_token_s: tuple[float, ...]


class Arm(Protocol):
    """A way to transcribe pages."""

    def __call__(self, pages: Sequence[BenchPage], at_once: int) -> Served:
        """Transcribes pages, so many requests at once."""
        ...


class _FirstToken:
    """A streamer that notes when the first token came; ``generate`` shows the prompt before it."""

    def __init__(self) -> None:
        self.calls = 0
        self.time = 0.0

    def put(self, value: Any) -> None:
        """Called with the prompt, then with the tokens of each step."""
        self.calls += 1
        if self.calls == 2:
            self.time = time.perf_counter()

    def end(self) -> None:
        """Called after the last step."""


class TransformersArm:
    """``generate`` in batches padded on the left.

    Args:
        folder: An unquantized checkpoint.
        dtype: Of weights and activations.
        max_tokens: Longest answer.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, max_tokens: int) -> None:
        self.model: Any = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        ).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.max_tokens = max_tokens
        end = self.model.generation_config.eos_token_id
        self.end_ids = frozenset(end if isinstance(end, list) else [end])
        config = self.model.config
        self.encoder = PageEncoder(
            self.tokenizer,
            open_images(FAMILIES[config.architectures[0]], folder, self.tokenizer, config),
            prompts_for(self.tokenizer.get_vocab(), model_type=config.model_type),
            image_token_id=int(config.image_token_id),
            end_token_id=min(self.end_ids),
            max_positions=int(config.get_text_config().max_position_embeddings),
            dtype=dtype,
        )

    def __call__(self, pages: Sequence[BenchPage], at_once: int) -> Served:
        """See `Arm`."""
        ids: list[tuple[int, ...]] = []
        first: list[float] = []
        num_tokens = 0
        for begin in range(0, len(pages), at_once):
            batch = pages[begin : begin + at_once]
            began, seen = time.perf_counter(), _FirstToken()
            rows = self.generate(self.encode(batch), streamer=seen)
            first += [seen.time - began] * len(batch)
            for row in rows.tolist():
                answer = self.answer(row)
                ids.append(answer)
                num_tokens += len(answer) + (len(answer) < len(row))
        texts = tuple(self.tokenizer.decode(list(answer), skip_special_tokens=True) for answer in ids)
        return Served(texts, tuple(ids), num_tokens, tuple(first))

    def encode(self, pages: Sequence[BenchPage]) -> Encoded:
        """A batch padded on the left."""
        inputs = [PageInput(page.image, page.kind, id=page.id) for page in pages]
        return self.encoder.encode(inputs, padding_side="left")

    def generate(self, encoded: Encoded, **options: Any) -> Any:
        """What ``generate`` gives, prompts cut off where it is tokens."""
        with torch.inference_mode():
            output = self.model.generate(
                input_ids=encoded.input_ids,
                attention_mask=encoded.valid.long(),
                mm_token_type_ids=encoded.image_mask.int(),
                **encoded.vision,
                do_sample=False,
                max_new_tokens=self.max_tokens,
                **options,
            )
        return output[:, encoded.input_ids.shape[1] :] if isinstance(output, torch.Tensor) else output

    def answer(self, row: Sequence[int]) -> tuple[int, ...]:
        """Tokens up to the first one that ends an answer."""
        ends = [place for place, token in enumerate(row) if token in self.end_ids]
        return tuple(row[: ends[0]] if ends else row)


class EngineArm:
    """The engine of this package.

    Args:
        runtime: With room for as many requests as are asked for at once.
        max_tokens: Longest answer.
    """

    def __init__(self, runtime: Runtime, max_tokens: int) -> None:
        self.runtime = runtime
        self._params = SamplingParams(max_tokens=max_tokens)

    def __call__(self, pages: Sequence[BenchPage], at_once: int) -> Served:
        """See `Arm`."""
        engine, encode = self.runtime.engine, self.runtime.processor.encode
        texts: list[str] = []
        ids: list[tuple[int, ...]] = []
        first: list[float] = []
        num_tokens = 0
        for begin in range(0, len(pages), at_once):
            began = time.perf_counter()
            names = [
                engine.submit(page_prompt(encode(page.image, page.kind)), self._params)
                for page in pages[begin : begin + at_once]
            ]
            seen: dict[str, float] = {}
            results = {}
            while engine.has_work:
                for output in engine.step():
                    seen.setdefault(output.id, time.perf_counter() - began)
                    if output.result is not None:
                        results[output.id] = output.result
            first += [seen[name] for name in names]
            texts += [results[name].text for name in names]
            ids += [results[name].ids for name in names]
            num_tokens += sum(results[name].num_generated for name in names)
        return Served(tuple(texts), tuple(ids), num_tokens, tuple(first))
