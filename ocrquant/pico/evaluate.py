"""Greedy transcription with pico and its character error rate on held-out documents.

`python -m ocrquant.pico.evaluate [--model DIR] [--corpus DIR]` prints one JSON line a kind. Runs the model
through `transformers` alone, the way any user would; knows nothing of training.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ocrquant.metrics.text import cer
from ocrquant.pico.corpus import Crop, read_crops
from ocrquant.pico.tokenizer import PROMPTS

HELDOUT = {"line": "lines-heldout.parquet", "block": "blocks-heldout.parquet"}
FOLDER = Path(__file__).parent / "model"


def prompt_text(kind: str, image_tokens: int) -> str:
    """The prompt of one picture with its image tokens already repeated."""
    pads = "<|image_pad|>" * image_tokens
    return f"<|user|><|vision_start|>{pads}<|vision_end|>{PROMPTS[kind]}<|assistant|>"


@torch.no_grad()
def transcribe(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    processor: Qwen2VLImageProcessorPil,
    pictures: Sequence[tuple[np.ndarray, str]],
    *,
    batch_size: int = 32,
    max_new_tokens: int = 640,
) -> list[str]:
    """Greedy transcription of (uint8 grey [H, W], kind) pictures, in their order; batches go by width."""
    order = sorted(range(len(pictures)), key=lambda i: pictures[i][0].size)
    texts = [""] * len(pictures)
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        images = [Image.fromarray(pictures[i][0]).convert("RGB") for i in chosen]
        vision = processor(images=images, return_tensors="pt")
        counts = (vision["image_grid_thw"].prod(-1) // processor.merge_size**2).tolist()
        prompts = [prompt_text(pictures[i][1], count) for i, count in zip(chosen, counts, strict=True)]
        encoded = tokenizer(prompts, return_tensors="pt", padding=True)
        ids = encoded["input_ids"].to(model.device)
        output = model.generate(
            input_ids=ids,
            attention_mask=encoded["attention_mask"].to(model.device),
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
            pixel_values=vision["pixel_values"].to(model.device, model.dtype),
            image_grid_thw=vision["image_grid_thw"].to(model.device),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=model.config.text_config.eos_token_id,
            pad_token_id=model.config.text_config.pad_token_id,
        )
        decoded = tokenizer.batch_decode(output[:, ids.shape[1] :], skip_special_tokens=True)
        for i, text in zip(chosen, decoded, strict=True):
            texts[i] = text
    return texts


def spread(crops: list[Crop], count: int | None) -> list[Crop]:
    """Every n-th crop so that `count` remain, evenly over the file and so over the documents."""
    if count is None or count >= len(crops):
        return crops
    return [crops[int(i)] for i in np.linspace(0, len(crops) - 1, count)]


def heldout_cer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    processor: Qwen2VLImageProcessorPil,
    crops: list[Crop],
    kind: str,
    *,
    max_new_tokens: int = 640,
) -> dict[str, float | int | str]:
    """Character error rate of greedy transcription: all edits over all true characters."""
    start = time.perf_counter()
    outputs = transcribe(
        model, tokenizer, processor, [(c.grey, kind) for c in crops], max_new_tokens=max_new_tokens
    )
    truths = [crop.text for crop in crops]
    exact = sum(output == truth for output, truth in zip(outputs, truths, strict=True))
    return {
        "kind": kind,
        "num_crops": len(crops),
        "cer": cer(zip(truths, outputs, strict=True)),
        "exact_share": exact / len(crops),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=FOLDER, help="model folder (default: the one that ships)"
    )
    parser.add_argument(
        "--corpus", type=Path, default=os.environ.get("OCRQUANT_CORPUS"), help="folder of parquet files"
    )
    parser.add_argument("--num-crops", type=int, default=None, help="crops of each kind (default: all)")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    model = AutoModelForImageTextToText.from_pretrained(options.model, dtype=getattr(torch, options.dtype))
    model = model.to(options.device).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    processor = Qwen2VLImageProcessorPil.from_pretrained(options.model)
    for kind, name in HELDOUT.items():
        crops = spread(read_crops(Path(options.corpus) / name, split="heldout"), options.num_crops)
        print(
            json.dumps({**heldout_cer(model, tokenizer, processor, crops, kind), "dtype": options.dtype}),
            flush=True,
        )


if __name__ == "__main__":
    main()
