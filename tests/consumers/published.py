"""What a published folder holds beyond our tiny models', so that other programs prepare pages from it.

The adapters of this package need an image processor and a tokenizer; the processors of transformers also ask
the tokenizer which tokens stand for an image, and a file for their own class and numbers. Knows names of
transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["PUBLISHED", "complete"]

QWEN_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """What is written into a folder.

    Attributes:
        tokens: What a processor asks the tokenizer for, by the names under which it does.
        processor: ``processor_config.json``; none where the class follows from the model.
        images: Entries of ``preprocessor_config.json``.
        video: ``video_preprocessor_config.json``; none where the processor has no part for videos.
    """

    tokens: Mapping[str, str] = field(default_factory=lambda: QWEN_TOKENS)
    processor: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    video: Mapping[str, Any] = field(default_factory=dict)


_ROWS = Published(
    tokens={"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"},
    processor={"image_seq_len": 4},
)

PUBLISHED: Mapping[str, Published] = {
    "glm_ocr": Published(
        processor={"processor_class": "Glm46VProcessor"},
        images={"image_processor_type": "Glm46VImageProcessor"},
        video={
            "video_processor_type": "Glm46VVideoProcessor",
            "patch_size": 8,
            "merge_size": 2,
            "temporal_patch_size": 2,
            "size": {"shortest_edge": 16**2, "longest_edge": 2 * 16**2 * 60},
        },
    ),
    "idefics3": _ROWS,
    "smolvlm": _ROWS,
    "lighton_ocr": Published(
        tokens={
            "image_token": "<|image_pad|>",
            "image_break_token": "<|vision_start|>",
            "image_end_token": "<|vision_end|>",
        },
        processor={"patch_size": 8, "spatial_merge_size": 2},
    ),
    "internvl": Published(
        tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<|video_pad|>",
        },
        processor={"processor_class": "InternVLProcessor", "image_seq_length": 4},
    ),
    "got_ocr2": Published(tokens={"image_token": "<imgpad>"}),
    "deepseek_ocr2": Published(tokens={"image_token": "<image>"}),
}
"""Family -> what its folder needs; of the rest, what Qwen's processors ask for."""


def complete(family: str, folder: Path) -> None:
    """Writes into a tiny model's folder what a published one has beside it."""
    published = PUBLISHED.get(family, Published())
    _extend(folder / "tokenizer_config.json", {"extra_special_tokens": dict(published.tokens)})
    for name, entries in {
        "processor_config.json": published.processor,
        "preprocessor_config.json": published.images,
        "video_preprocessor_config.json": published.video,
    }.items():
        if entries:
            _extend(folder / name, entries)


def _extend(path: Path, entries: Mapping[str, Any]) -> None:
    present = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps({**present, **entries}, indent=2), encoding="utf-8")
