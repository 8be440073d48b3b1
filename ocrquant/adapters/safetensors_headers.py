"""The tensors of a model folder from the headers of its safetensors files, without reading a weight.

Knows the safetensors layout (8 bytes length, JSON, data) and the sharded index; knows no architecture.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from ocrquant.adapters.structure import TensorInfo
from ocrquant.errors import ModelError
from ocrquant.json_files import read_json

__all__ = ["folder_tensors"]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.gguf", "*.onnx")


def _read_header(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if start.startswith(b"version "):
            raise ValueError("a Git LFS pointer instead of the file")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
    end = max(
        (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0
    )
    if size != 8 + length + end:
        raise ValueError(f"{size} bytes where the header describes {8 + length + end}")
    header.pop("__metadata__", None)
    return dict(header)


def _file_tensors(path: Path) -> dict[str, TensorInfo]:
    try:
        header = _read_header(path)
        return {
            name: TensorInfo(
                dtype=str(entry["dtype"]),
                shape=tuple(int(size) for size in entry["shape"]),
                file=path.name,
                num_bytes=int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
            )
            for name, entry in header.items()
        }
    except FileNotFoundError as error:
        fix = "fetch the missing shard"
        raise ModelError(path.parent, expected=path.name, given="no such file", fix=fix) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError(
            path, expected="a complete safetensors file", given=error, fix="fetch it again"
        ) from error


def _sharded_tensors(folder: Path) -> dict[str, TensorInfo]:
    where = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise ModelError(
            folder / INDEX_FILE, expected="a weight_map", given=repr(where), fix="fetch the index again"
        )
    found: dict[str, TensorInfo] = {}
    for shard in sorted({str(name) for name in where.values()}):
        if Path(shard).name != shard:
            raise ModelError(
                folder / INDEX_FILE, expected="shards beside the index", given=shard, fix="move them"
            )
        for name, tensor in _file_tensors(folder / shard).items():
            if where.get(name) != shard:
                raise _mismatch(folder, f"{name} in {where.get(name, 'no shard')}", f"it in {shard}")
            found[name] = tensor
    if missing := sorted(set(where) - set(found)):
        raise _mismatch(folder, f"{missing[0]} in {where[missing[0]]}", f"{len(missing)} absent tensor(s)")
    return found


def _mismatch(folder: Path, expected: str, given: str) -> ModelError:
    fix = "fetch index and shards of the same revision"
    return ModelError(folder / INDEX_FILE, expected=expected, given=given, fix=fix)


def folder_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Name -> description of every tensor that loading the folder would read, sorted by name.

    Raises:
        ModelError: No safetensors weights, a missing or truncated shard, an index that disagrees with its
            shards.
    """
    if (folder / SINGLE_FILE).is_file():
        found = _file_tensors(folder / SINGLE_FILE)
    elif (folder / INDEX_FILE).is_file():
        found = _sharded_tensors(folder)
    else:
        others = sorted(path.name for pattern in OTHER_WEIGHTS for path in folder.glob(pattern))
        fix = "save the model with safe_serialization=True" if others else "fetch the weights of the model"
        raise ModelError(
            folder,
            expected=f"{SINGLE_FILE} or {INDEX_FILE}",
            given=f"only {', '.join(others)}" if others else "no weights",
            fix=fix,
        )
    return dict(sorted(found.items()))
