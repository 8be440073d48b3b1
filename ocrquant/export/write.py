"""A checkpoint folder written as a whole or not at all: tensors, their index, configuration, all other files.

Knows files. Does not know where the tensors come from.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ocrquant.artifacts import atomic_folder
from ocrquant.checkpoint import (
    Configuration,
    copy_other_files,
    plan_shards,
    with_quantization_config,
    write_json,
    write_shards,
)
from ocrquant.errors import OutputError
from ocrquant.export.tensor_list import TensorList

__all__ = ["write_folder"]


def write_folder(
    source: Path,
    out: Path,
    *,
    tensors: TensorList,
    config: bytes,
    configuration: Configuration | None,
    tied_head: bool,
    max_shard_bytes: int,
) -> None:
    """Writes a folder; tensors pass through one at a time, so memory does not grow with the model.

    Args:
        source: Folder whose other files are copied byte for byte.
        out: Folder to write; what was there is replaced.
        tensors: What to write into the safetensors files.
        config: Text of ``config.json`` without a ``quantization_config``.
        configuration: What the format says of the plan; None adds nothing.
        tied_head: Whether the head shares the weight of the embedding.
        max_shard_bytes: Most bytes of tensors in a file.

    Raises:
        ModelError: The source cannot be read.
        OutputError: `out` is the source, is not writable, or the disk is full.
    """
    if out.exists() and out.resolve() == source.resolve():
        raise OutputError(out, expected="another folder than the source", given="the same", fix="name one")
    said = None if configuration is None else configuration.quantization_config
    config_bytes = with_quantization_config(config, said, tied_head=tied_head)
    _remove_leftovers(out)
    shards = plan_shards(tensors.specs, max_shard_bytes)
    with atomic_folder(out) as temporary:
        copy_other_files(source, temporary)
        (temporary / "config.json").write_bytes(config_bytes)
        for name, data in (configuration.files if configuration else {}).items():
            write_json(temporary / name, data)
        write_shards(temporary, shards, tensors.make)


def _remove_leftovers(out: Path) -> None:
    """Deletes what killed exports to the same folder left beside it."""
    for path in out.parent.glob(f".{out.name}.*.part"):
        shutil.rmtree(path, ignore_errors=True)
