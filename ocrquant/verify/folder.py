"""A checkpoint folder as it is, whoever wrote it: what is broken becomes a finding, and the rest is read.

Knows files, the index and safetensors headers. Does not know what a tensor means.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ocrquant.checkpoint import TensorSpec
from ocrquant.checkpoint.layout import DTYPE_BYTES, INDEX_NAME
from ocrquant.errors import ModelError
from ocrquant.json_files import read_json
from ocrquant.stacked_experts import StackedWeight, stacked_weights
from ocrquant.tensor_file import TensorFile
from ocrquant.verify.findings import Findings

__all__ = ["MODELOPT_FILE", "CheckpointFolder"]

MODELOPT_FILE = "hf_quant_config.json"
_SINGLE = "model.safetensors"
_OTHER_FORMS = (".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack")


class CheckpointFolder:
    """A folder of safetensors files with a ``config.json``; use as a context manager.

    Args:
        path: The folder.
        findings: Where what is broken is noted.

    Attributes:
        path: The folder.
        config: What ``config.json`` holds.
        quantization: Its ``quantization_config``, as an object; None where there is none.
        modelopt: What ``hf_quant_config.json`` holds; None where there is none.
        tensors: Every tensor of every file that the index, or else the single file, names.
        stacked: Weights of single experts that lie in tensors of all of them, by names of their own.
        num_bytes: Bytes of all tensors.

    Raises:
        ModelError: There is no ``config.json``, or not one safetensors file.
    """

    def __init__(self, path: Path, findings: Findings) -> None:
        self.path = path
        self.config = read_json(path / "config.json")
        found = self.config.get("quantization_config")
        self.quantization: dict[str, Any] | None = found if isinstance(found, dict) else None
        has_file = (path / MODELOPT_FILE).is_file()
        self.modelopt = read_json(path / MODELOPT_FILE) if has_file else None
        self.tensors: dict[str, TensorSpec] = {}
        self._where: dict[str, Path] = {}
        self._files: dict[Path, TensorFile] = {}
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ModelError(path, expected="safetensors files", given="none", fix="name another folder")
        self._read(files, findings)
        shapes = {name: spec.shape for name, spec in self.tensors.items()}
        self.stacked: dict[str, StackedWeight] = stacked_weights(shapes)
        for file in sorted(path.iterdir()):
            if file.suffix in _OTHER_FORMS:
                findings.add(
                    "weights-in-other-form",
                    file.name,
                    expected="safetensors files alone",
                    given="another form",
                    fix="delete it",
                )

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, headers left out."""
        return sum(spec.num_bytes for spec in self.tensors.values())

    @property
    def architecture(self) -> str:
        """Class name of the model."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else "no architecture"

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The part of the configuration that describes the decoder."""
        parts = (self.config.get("text_config"), self.config.get("llm_config"), self.config)
        return next(part for part in parts if isinstance(part, dict))

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored, on the CPU.

        Raises:
            ModelError: The file cannot be read.
        """
        path = self._where[name]
        try:
            if path not in self._files:
                self._files[path] = TensorFile(path)
            return self._files[path].read(name)
        except (OSError, ValueError) as error:
            raise ModelError(path, expected="a readable file", given=error, fix="fetch it again") from error

    def close(self) -> None:
        """Closes the files; tensors already read stay valid."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, files: list[Path], findings: Findings) -> None:
        index = self._index(findings)
        listed = {_SINGLE} if index is None else set(index.values())
        present = {file.name for file in files}
        if index is None and _SINGLE not in present:
            listed = present
        for name in sorted(listed - present):
            count = sum(shard == name for shard in (index or {}).values())
            findings.add(
                "shard-missing", name, expected=f"a file with {count} tensors", given="none", fix="fetch it"
            )
        for name in sorted(present - listed):
            findings.add(
                "shard-unlisted",
                name,
                expected=f"a file that {INDEX_NAME} lists",
                given="one that it does not",
                fix="delete it",
            )
        damaged = {name for name in sorted(listed & present) if not self._header(self.path / name, findings)}
        if index is not None:
            self._compare(index, listed & present - damaged, findings)

    def _index(self, findings: Findings) -> dict[str, str] | None:
        if not (self.path / INDEX_NAME).is_file():
            return None
        data = read_json(self.path / INDEX_NAME)
        shards = data.get("weight_map")
        if not isinstance(shards, dict) or not shards:
            findings.add(
                "index-misses-tensor",
                INDEX_NAME,
                expected="a weight_map",
                given=type(shards).__name__,
                fix="write the index again",
            )
            return None
        metadata = data.get("metadata")
        self._total = metadata.get("total_size") if isinstance(metadata, dict) else None
        return {str(name): str(file) for name, file in shards.items()}

    def _compare(self, index: Mapping[str, str], files: set[str], findings: Findings) -> None:
        for name, file in index.items():
            if file in files and self._where.get(name) != self.path / file:
                findings.add(
                    "index-names-absent-tensor",
                    name,
                    expected=f"it in {file}, as {INDEX_NAME} says",
                    given="none there",
                    fix="write the index again",
                )
        for name, path in self._where.items():
            if name not in index:
                findings.add(
                    "index-misses-tensor",
                    name,
                    expected=f"an entry in {INDEX_NAME}",
                    given=f"none, though {path.name} holds it",
                    fix="write the index again",
                )
        if set(index.values()) <= files and self._total != self.num_bytes:
            findings.add(
                "index-total-size",
                INDEX_NAME,
                expected=f"total_size {self.num_bytes}, the bytes of all tensors",
                given=self._total,
                fix="write the index again",
            )

    def _header(self, path: Path, findings: Findings) -> bool:
        """Reads a header; the library compares it with the size of the file."""
        try:
            with safe_open(path, framework="pt") as file:
                specs = {
                    name: TensorSpec(
                        name, (part := file.get_slice(name)).get_dtype(), tuple(part.get_shape())
                    )
                    for name in sorted(file.keys())
                }
        except (OSError, SafetensorError) as error:
            findings.add(
                "shard-damaged",
                path.name,
                expected="a complete safetensors file",
                given=error,
                fix="fetch it again",
            )
            return False
        for name, spec in specs.items():
            if spec.dtype not in DTYPE_BYTES:
                findings.add(
                    "tensor-dtype",
                    name,
                    expected=f"one of {', '.join(DTYPE_BYTES)}",
                    given=spec.dtype,
                    fix="export it again",
                )
                continue
            self.tensors[name] = spec
            self._where[name] = path
        return True
