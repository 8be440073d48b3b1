"""Training pictures in memory: line and block crops read from parquet files, decoded once.

Knows the columns of the corpus (image, text, kind, doc, split, dpi, font_pt, char_x); knows nothing of tokens
or tensors. Documents of the held-out or calibration split are refused here, so no training run can see them.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from ocrquant.errors import PagesError, SplitError

COLUMNS = ["image", "text", "kind", "doc", "split", "dpi", "font_pt", "char_x", "y0"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    """One crop.

    `grey` is uint8 [height, width]; `char_x` float32, pixels, one per non-space character, or empty.
    """

    grey: np.ndarray
    text: str
    kind: str
    style: tuple[str, float, int]
    char_x: np.ndarray
    top: int


def read_crops(path: Path, *, split: str) -> list[Crop]:
    """All crops of one parquet file, whose rows must all belong to `split`."""
    if not path.is_file():
        raise PagesError(
            str(path), expected="a parquet file of crops", given="no such file", fix="check the folder"
        )
    table = pq.read_table(path, columns=[c for c in COLUMNS if c in pq.read_schema(path).names])
    crops = []
    for row in table.to_pylist():
        if row["split"] != split:
            raise SplitError(
                f"{path.name}, document {row['doc']}",
                expected=f"only split '{split}'",
                given=f"split '{row['split']}'",
                fix="do not mix the splits",
            )
        grey = np.asarray(Image.open(io.BytesIO(row["image"])).convert("L"))
        crops.append(
            Crop(
                grey=grey,
                text=row["text"],
                kind=row["kind"],
                style=(row["doc"], round(row["font_pt"] or 0.0, 1), row["dpi"]),
                char_x=np.asarray(row.get("char_x") or [], dtype=np.float32),
                top=row["y0"],
            )
        )
    return crops
