"""Vision towers: pixels of a batch of images, packed into one sequence, to embeddings of their tokens.

Knows the towers of Qwen3.5-VL and PaddleOCR-VL. Does not know where pixels come from, nor any text.
"""

from __future__ import annotations

from ocrquant.models.grids import Grid
from ocrquant.models.vision.paddleocr_vl import paddleocr_vl_tower
from ocrquant.models.vision.qwen3_5 import qwen3_5_tower
from ocrquant.models.vision.tower import VisionTower

__all__ = ["Grid", "VisionTower", "paddleocr_vl_tower", "qwen3_5_tower"]
