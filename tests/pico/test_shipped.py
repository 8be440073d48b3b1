"""The model that ships: an ordinary folder that `transformers` loads, and that reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ocrquant.metrics.text import cer
from ocrquant.pages import load_pages, page_image
from ocrquant.pico import evaluate, ship

SOURCE = Path(__file__).parents[2] / "calibration_data"
# Above this nothing downstream can be judged on pico; its card states what it reaches on all held-out crops.
MAX_LINE_CER = 0.10
NUM_LINES = 48


@pytest.fixture(scope="module")
def model():
    return AutoModelForImageTextToText.from_pretrained(evaluate.FOLDER, dtype=torch.bfloat16).eval()


def test_it_reads_lines_of_documents_that_it_never_saw(model):
    pages = [p for p in load_pages(SOURCE, kinds=["line"]) if p.split == "heldout"][:NUM_LINES]
    tokenizer = AutoTokenizer.from_pretrained(evaluate.FOLDER)
    processor = Qwen2VLImageProcessorPil.from_pretrained(evaluate.FOLDER)
    pictures = [(np.asarray(page_image(page).convert("L")), "line") for page in pages]
    outputs = evaluate.transcribe(model, tokenizer, processor, pictures, max_new_tokens=160)
    assert cer(zip([page.text for page in pages], outputs, strict=True)) <= MAX_LINE_CER


def test_it_is_small_and_in_bf16(model):
    assert sum(parameter.numel() for parameter in model.parameters()) <= 12_000_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not model.config.tie_word_embeddings


def test_the_card_quotes_what_the_log_says():
    card = (evaluate.FOLDER / "README.md").read_text(encoding="utf-8")
    rows = [json.loads(row) for row in (evaluate.FOLDER / ship.LOG_NAME).read_text().splitlines()]
    assert {row["heldout"] for row in rows if "heldout" in row} == {"line", "block"}
    assert f"{max(row['crops'] for row in rows):,} crops were seen" in card
    assert "character error rate" in card
