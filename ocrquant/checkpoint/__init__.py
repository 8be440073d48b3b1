"""Checkpoint folders: safetensors shards, their index and configuration, written and read back.

Knows the compressed-tensors format and the files of a Hugging Face folder. Does not know how a plan was
found, and computes nothing with a weight.
"""

from __future__ import annotations

from ocrquant.checkpoint.layout import Shard, TensorSpec, plan_shards
from ocrquant.checkpoint.patterns import LinearNames
from ocrquant.checkpoint.reader import CheckpointReader
from ocrquant.checkpoint.scheme import (
    INPUT_SCALE_NAME,
    KV_SCALE_NAMES,
    quantization_config,
    stored_specs,
)
from ocrquant.checkpoint.stored import StoredCheckpoint
from ocrquant.checkpoint.writer import (
    copy_other_files,
    dtype_name,
    with_quantization_config,
    write_shards,
)

__all__ = [
    "INPUT_SCALE_NAME",
    "KV_SCALE_NAMES",
    "CheckpointReader",
    "LinearNames",
    "Shard",
    "StoredCheckpoint",
    "TensorSpec",
    "copy_other_files",
    "dtype_name",
    "plan_shards",
    "quantization_config",
    "stored_specs",
    "with_quantization_config",
    "write_shards",
]
