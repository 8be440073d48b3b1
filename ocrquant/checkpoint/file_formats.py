"""The table of checkpoint formats, and which one a folder is in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ocrquant.checkpoint.compressed_tensors import COMPRESSED_TENSORS
from ocrquant.checkpoint.file_format import FileFormat
from ocrquant.checkpoint.modelopt import MODELOPT
from ocrquant.errors import ModelError

__all__ = ["FILE_FORMATS", "file_format_of"]

FILE_FORMATS: Mapping[str, FileFormat] = MappingProxyType(
    {file_format.name: file_format for file_format in (COMPRESSED_TENSORS, MODELOPT)}
)
"""Formats by the name that recipes and ``quant_method`` use."""


def file_format_of(config: Mapping[str, Any]) -> FileFormat:
    """The format of a folder by its ``config.json``; compressed-tensors where nothing is quantized.

    Raises:
        ModelError: It is quantized in another format.
    """
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return COMPRESSED_TENSORS
    method = str(found.get("quant_method"))
    if method not in FILE_FORMATS:
        raise ModelError(
            "quantization_config: quant_method",
            expected=" or ".join(FILE_FORMATS),
            given=method,
            fix="export the model with this package",
        )
    return FILE_FORMATS[method]
