"""Pages for tests of preparing: good ones, and one of each kind that fails."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

from ocrquant.engine.preparing import PageTask
from ocrquant.models.processing import ImageSpec, PageEncoder, PromptTokens
from ocrquant.pages import ImageRef
from tests.engine.fakes import IMAGE_TOKEN

SPEC = ImageSpec(
    rule="qwen",
    block_order=True,
    patch_size=4,
    temporal_patch_size=2,
    merge_size=2,
    min_pixels=64,
    max_pixels=4096,
    resample=int(Image.Resampling.BICUBIC),
    rescale_factor=1 / 255,
    mean=None,
    std=None,
)
ENCODER = PageEncoder(
    images=SPEC,
    prompts={"line": PromptTokens((1, 2), (3,)), "page": PromptTokens((4, 5), (6,))},
    image_token_id=IMAGE_TOKEN,
    max_positions=128,
)


def picture(seed: int, width: int = 40, height: int = 16) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def good_pages(folder: Path, count: int) -> list[PageTask]:
    """Pages of different sizes and contents."""
    tasks = []
    for number in range(count):
        path = folder / f"good-{number}.png"
        picture(number, 24 + 8 * (number % 3), 16).save(path)
        tasks.append(PageTask(f"good-{number}", ImageRef(path, "image"), "line"))
    return tasks


def bad_pages(folder: Path) -> list[PageTask]:
    """Damaged header, damaged pixels, too narrow, too large, of no kind, missing."""
    header, cut, narrow, large = (folder / f"{name}.png" for name in ("header", "cut", "narrow", "large"))
    header.write_bytes(b"not an image")
    picture(0, 200, 200).save(cut)
    cut.write_bytes(cut.read_bytes()[:5000])
    picture(0, 2000, 2).save(narrow)
    picture(0, 30, 30).save(large)
    return [
        PageTask("header", ImageRef(header, "image"), "line"),
        PageTask("cut", ImageRef(cut, "image"), "line"),
        PageTask("narrow", ImageRef(narrow, "image"), "line"),
        PageTask("large", ImageRef(large, "image"), "line", max_pixels=899),
        PageTask("kind", ImageRef(large, "image"), "poster"),
        PageTask("missing", ImageRef(folder / "missing.png", "image"), "line"),
    ]


ERRORS = {
    "header": "ImageError",
    "cut": "ImageError",
    "narrow": "PageSizeError",
    "large": "PageSizeError",
    "kind": "RecipeError",
    "missing": "ImageError",
}


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process_id}/stat")
    # A zombie is no longer there, only its exit code is.
    return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")
