"""Which tensor goes into which safetensors file, and what the header of that file says.

Knows names, dtypes, shapes and the safetensors format (https://github.com/huggingface/safetensors, "Format").
Holds no tensor data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

__all__ = ["DTYPE_BYTES", "INDEX_NAME", "Shard", "TensorSpec", "index_text", "plan_shards"]

INDEX_NAME = "model.safetensors.index.json"

DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
"""Bytes of an element by its name in a safetensors header."""

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written.

    Attributes:
        name: Its name in the checkpoint.
        dtype: Its dtype as safetensors calls it, such as ``BF16``.
        shape: Sizes of its axes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements of its data."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of its data."""
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file.

    Attributes:
        file_name: Its name.
        specs: Its tensors in the order of their data: widest dtype first, so that each is aligned, then by
            name.
    """

    file_name: str
    specs: tuple[TensorSpec, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors, header left out."""
        return sum(spec.num_bytes for spec in self.specs)

    def header(self) -> bytes:
        """The file up to its first tensor."""
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        begin = 0
        for spec in self.specs:
            end = begin + spec.num_bytes
            entries[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [begin, end],
            }
            begin = end
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def plan_shards(specs: Iterable[TensorSpec], max_shard_bytes: int) -> list[Shard]:
    """Spreads tensors over files in the order given.

    Args:
        specs: The tensors.
        max_shard_bytes: Most bytes of tensors in a file; a single tensor that is larger gets a file of its
            own.

    Returns:
        At least one shard. A single one is called ``model.safetensors`` and needs no index.
    """
    parts: list[list[TensorSpec]] = [[]]
    num_bytes = 0
    for spec in specs:
        if parts[-1] and num_bytes + spec.num_bytes > max_shard_bytes:
            parts.append([])
            num_bytes = 0
        parts[-1].append(spec)
        num_bytes += spec.num_bytes
    ordered = [tuple(sorted(part, key=lambda spec: (-DTYPE_BYTES[spec.dtype], spec.name))) for part in parts]
    return [Shard(name, part) for name, part in zip(_file_names(len(parts)), ordered, strict=True)]


def index_text(shards: Sequence[Shard]) -> str:
    """``model.safetensors.index.json``: where each tensor is, and the bytes of all of them."""
    weight_map = {spec.name: shard.file_name for shard in shards for spec in shard.specs}
    index = {"metadata": {"total_size": sum(shard.num_bytes for shard in shards)}, "weight_map": weight_map}
    return json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _file_names(count: int) -> Iterator[str]:
    if count == 1:
        yield "model.safetensors"
        return
    for number in range(1, count + 1):
        yield f"model-{number:05d}-of-{count:05d}.safetensors"
