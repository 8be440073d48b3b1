"""Tokenizer, schedule, refusal of held-out documents, and a training run that is stopped and resumed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from ocrquant.errors import PagesError, SplitError
from ocrquant.pico import corpus, evaluate, schedule, tokenizer, train


def row(text: str, split: str, kind: str = "line") -> dict[str, object]:
    buffer = io.BytesIO()
    height = 18 * (text.count("\n") + 1)
    Image.fromarray(np.random.default_rng(len(text)).integers(0, 256, (height, 90), dtype=np.uint8)).save(
        buffer, "PNG"
    )
    places = [float(5 + 8 * i) for i, c in enumerate(text) if not c.isspace()] if kind == "line" else []
    return {
        "image": buffer.getvalue(), "text": text, "kind": kind, "doc": f"doc-{split}", "split": split, "dpi":
        96, "font_pt": 10.0, "char_x": places, "y0": 0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for names, split in (
        ((*train.TRAIN_LINES, *train.TRAIN_BLOCKS), "train"),
        (evaluate.HELDOUT.values(), "heldout"),
    ):
        for name in names:
            kind = "block" if "blocks" in name else "line"
            texts = ["ab cd\nef", "one\ntwo"] if kind == "block" else ["ab cd ef", "hello", "a b"]
            pq.write_table(pa.Table.from_pylist([row(text, split, kind) for text in texts]), folder / name)
    return folder


def test_every_character_is_a_token_and_comes_back():
    words = tokenizer.build_tokenizer(tokenizer.alphabet(["é é"]))
    text = "Read me: “é”\n x"
    ids = words(text)["input_ids"]
    assert len(ids) == len(text)
    assert words.decode(ids, skip_special_tokens=True) == text.replace("“", "").replace("”", "")
    assert len(words("Read the line.")["input_ids"]) == 1


def test_the_alphabet_fits_the_vocabulary():
    many = "".join(chr(0x4E00 + i) * 2 for i in range(1000))
    assert len(tokenizer.build_tokenizer(tokenizer.alphabet([many]))) <= 320


def test_heldout_documents_are_refused(corpus_folder: Path):
    with pytest.raises(SplitError, match="doc-heldout"):
        corpus.read_crops(corpus_folder / "lines-heldout.parquet", split="train")
    with pytest.raises(PagesError, match="no such file"):
        corpus.read_crops(corpus_folder / "absent.parquet", split="train")


def test_the_schedule_warms_up_stays_and_falls():
    end = schedule.total_crops()
    assert schedule.stage_at(0) is schedule.STAGES[0]
    assert schedule.stage_at(end) is None
    assert schedule.rate_factor(0) < 0.01
    decay = int(end * schedule.DECAY_SHARE)
    assert schedule.rate_factor(end - decay - 10) == 1.0
    assert schedule.rate_factor(end - decay // 2) == pytest.approx(0.5, abs=0.01)


def test_a_stopped_run_goes_on(corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stage = schedule.Stage(
        name="tiny",
        crops=64,
        mixture=schedule.Mixture(max_width=60, stack_share=0.2, block_share=0.2, stack_lines=2),
        with_text=True,
        corrupt=0.1,
        place_weight=0.5,
        positions=400,
    )
    monkeypatch.setattr(schedule, "STAGES", (stage,))
    monkeypatch.setattr(train, "POOL_SAMPLES", 16)
    weights = []
    for stops in ((64,), (24, 64)):
        out = tmp_path / str(len(stops))
        for until in stops:
            trainer = train.Trainer(corpus_folder, out, "cpu", seed=0)
            trainer.run(until=until, log_every=16, save_seconds=1e9, evaluate_every=10**9, num_heldout=2)
        weights.append(trainer.model.state_dict())
    rows = [json.loads(line) for line in (tmp_path / "2" / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["crops"] >= 64
    assert np.isfinite(rows[-1]["text_loss"])
    assert all(torch.isfinite(value).all() for value in weights[0].values())
    trainer.evaluate(2)
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    loaded = AutoModelForImageTextToText.from_pretrained(out / "model", dtype=torch.bfloat16)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.to(torch.bfloat16))
    assert AutoTokenizer.from_pretrained(out / "model").decode([9]) == "Read the line."
