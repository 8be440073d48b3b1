"""A folder of safetensors files read one tensor at a time.

Knows the index and headers. Does not know what a tensor means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ocrquant.checkpoint.layout import DTYPE_BYTES, INDEX_NAME, TensorSpec
from ocrquant.errors import ModelError
from ocrquant.stacked_experts import StackedWeight, stacked_weights
from ocrquant.tensor_file import TensorFile

__all__ = ["CheckpointReader"]


class CheckpointReader:
    """The tensors of a checkpoint, each read when it is asked for; use as a context manager.

    Args:
        folder: Folder with ``model.safetensors.index.json`` and the files it names, or with
            ``model.safetensors``.

    Attributes:
        folder: The folder.
        specs: Every tensor by name, file after file, and by name within a file.
        stacked: Weights of single experts that lie in tensors of all of them, by names of their own.

    Raises:
        ModelError: A file is missing, damaged or cut short, or does not hold what the index says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.specs: dict[str, TensorSpec] = {}
        self._open: dict[str, TensorFile] = {}
        self._stack = ExitStack()
        try:
            for file_name, names in self._files().items():
                self._add(file_name, names)
            shapes = {name: spec.shape for name, spec in self.specs.items()}
            self.stacked: dict[str, StackedWeight] = stacked_weights(shapes)
        except BaseException:
            self._stack.close()
            raise

    def spec(self, name: str) -> TensorSpec:
        """What a tensor is; a weight of `stacked` is described as if it were one.

        Raises:
            KeyError: There is no such tensor.
        """
        if name in self.specs or name not in self.stacked:
            return self.specs[name]
        weight = self.stacked[name]
        return TensorSpec(name, self.specs[weight.stack].dtype, weight.shape)

    def read(self, name: str) -> Tensor:
        """One tensor, or one weight of `stacked`, on the CPU.

        Raises:
            ModelError: There is no such tensor, or its file cannot be read.
        """
        weight = self.stacked.get(name) if name not in self._open else None
        if weight is None and name not in self._open:
            raise ModelError(
                self.folder, expected=f"a tensor {name}", given="none", fix="name another checkpoint"
            )
        try:
            return self._open[name].read(name) if weight is None else weight.read(self._open[weight.stack])
        except OSError as error:
            raise _damaged(self.folder, error) from error

    def close(self) -> None:
        """Closes the files; tensors already read stay valid."""
        self._stack.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _files(self) -> Mapping[str, set[str] | None]:
        """Names of the files and, where an index says so, of the tensors in each."""
        index = self.folder / INDEX_NAME
        if not index.is_file():
            return {"model.safetensors": None}
        try:
            weight_map = json.loads(index.read_bytes())["weight_map"]
            files: dict[str, set[str]] = {file: set() for file in sorted(set(weight_map.values()))}
            for name, file in weight_map.items():
                files[file].add(name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(index, error) from error
        return files

    def _add(self, file_name: str, expected: set[str] | None) -> None:
        path = self.folder / file_name
        try:
            # The library compares the whole header with the size of the file, and reads no tensor.
            with safe_open(path, framework="pt") as checked:
                specs = {name: _spec(name, checked.get_slice(name)) for name in sorted(checked.keys())}
            file = self._stack.enter_context(TensorFile(path))
        except (OSError, SafetensorError) as error:
            raise _damaged(path, error) from error
        if expected is not None and set(specs) != expected:
            odd = sorted(set(specs) ^ expected)[0]
            where = "in the index alone" if odd in expected else "in the file alone"
            fix = "fetch the checkpoint again"
            raise ModelError(path, expected="the tensors of the index", given=f"{odd} {where}", fix=fix)
        for name, spec in specs.items():
            if spec.dtype not in DTYPE_BYTES:
                known = ", ".join(DTYPE_BYTES)
                raise ModelError(f"{path}: {name}", expected=f"one of {known}", given=spec.dtype)
            self.specs[name] = spec
            self._open[name] = file


def _spec(name: str, part: Any) -> TensorSpec:
    return TensorSpec(name, part.get_dtype(), tuple(part.get_shape()))


def _damaged(path: Path, error: Exception) -> ModelError:
    expected = "readable safetensors files"
    return ModelError(path, expected=expected, given=error, fix="fetch the checkpoint again")
