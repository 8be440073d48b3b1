"""Safetensors files written one tensor at a time, their index, and the other files of a checkpoint.

Knows bytes and files. Does not know what a tensor means. Nothing here is atomic: write into the folder that
``artifacts.atomic_folder`` gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ocrquant.checkpoint.file_formats import FILE_FORMATS
from ocrquant.checkpoint.layout import INDEX_NAME, Shard, TensorSpec, index_text
from ocrquant.errors import ModelError, ShapeError

__all__ = ["copy_other_files", "dtype_name", "other_files", "write_json", "write_shards"]

_CONFIGS = frozenset(
    {Path("config.json"), *(Path(name) for row in FILE_FORMATS.values() for name in row.file_names)}
)
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx")

_DTYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a torch dtype in a safetensors header."""
    return _DTYPE_NAMES[dtype]


def write_shards(folder: Path, shards: Sequence[Shard], produce: Callable[[str], Tensor]) -> None:
    """Writes all files of tensors, and the index where there is more than one.

    Args:
        folder: Where to write.
        shards: What to write.
        produce: Gives the tensor of a name; called once for each, in the order of the files. Only one tensor
            is held at a time.

    Raises:
        ShapeError: A tensor is not the one that was planned.
        OSError: A file cannot be written.
    """
    for shard in shards:
        with (folder / shard.file_name).open("wb") as file:
            file.write(shard.header())
            for spec in shard.specs:
                file.write(_data(spec, produce(spec.name)))
    if len(shards) > 1:
        (folder / INDEX_NAME).write_text(index_text(shards), encoding="utf-8")


def other_files(source: Path) -> Iterator[Path]:
    """Files of a model folder other than weights and configurations, relative to it, in order of names.

    ``config.json`` and what else a format says of a plan is written anew.

    Hidden ones are left out, and so are weights in forms that this package does not read: a server might take
    them for the quantized ones.
    """
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        is_weight = name.name.endswith((*_WEIGHT_SUFFIXES, ".index.json"))
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not is_weight and not is_hidden and name not in _CONFIGS:
            yield name


def copy_other_files(source: Path, folder: Path) -> None:
    """Copies ``other_files`` byte for byte.

    Raises:
        ModelError: A file of the source cannot be read.
        OSError: A file cannot be written.
    """
    for name in other_files(source):
        data = _read(source / name)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Writes a JSON object; equal ones give equal bytes.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _data(spec: TensorSpec, tensor: Tensor) -> memoryview:
    given = TensorSpec(spec.name, dtype_name(tensor.dtype), tuple(tensor.shape))
    if given != spec:
        raise ShapeError(
            f"tensor {spec.name} to be written",
            expected=f"{spec.dtype} {list(spec.shape)}",
            given=f"{given.dtype} {list(given.shape)}",
            fix="run the stage that made it again",
        )
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(path, expected="a readable file", given=error.strerror) from error
