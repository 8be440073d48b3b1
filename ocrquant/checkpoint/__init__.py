"""Checkpoint folders: safetensors shards, their index and configuration, written and read back.

Knows the formats compressed-tensors and ModelOpt and the files of a Hugging Face folder. Does not know how a
plan was found, and computes nothing with a weight.
"""

from __future__ import annotations

from ocrquant.checkpoint.config_file import plain_config, with_quantization_config
from ocrquant.checkpoint.file_format import (
    INPUT_SCALE_NAME,
    KV_SCALE_NAMES,
    Configuration,
    FileFormat,
    StoredPart,
)
from ocrquant.checkpoint.file_formats import FILE_FORMATS, file_format_of
from ocrquant.checkpoint.layout import Shard, TensorSpec, plan_shards
from ocrquant.checkpoint.patterns import LinearNames
from ocrquant.checkpoint.reader import CheckpointReader
from ocrquant.checkpoint.stored import StoredCheckpoint
from ocrquant.checkpoint.writer import copy_other_files, dtype_name, write_json, write_shards

__all__ = [
    "FILE_FORMATS",
    "INPUT_SCALE_NAME",
    "KV_SCALE_NAMES",
    "CheckpointReader",
    "Configuration",
    "FileFormat",
    "LinearNames",
    "Shard",
    "StoredCheckpoint",
    "StoredPart",
    "TensorSpec",
    "copy_other_files",
    "dtype_name",
    "file_format_of",
    "plain_config",
    "plan_shards",
    "with_quantization_config",
    "write_json",
    "write_shards",
]
