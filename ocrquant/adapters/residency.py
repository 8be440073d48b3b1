"""Models larger than memory: the weights of a part are read from the checkpoint while the part is used.

The parts are the decoder blocks, and around them whatever is large (embedding, vision encoder, head); small
modules stay in memory. An embedding is never loaded: its rows are read one by one. Numbers are those of the
whole model, bit for bit. Knows safetensors files and the forward passes of modules; knows no page and no
plan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig, PreTrainedModel

from ocrquant.adapters.experts import split_experts
from ocrquant.adapters.structure import ModelMap
from ocrquant.errors import ModelError
from ocrquant.stored_parameter import StoredParameter
from ocrquant.tensor_file import TensorFile

__all__ = ["Residency", "load_in_parts", "parts_of"]

KEPT_PART_BYTES = 64 << 20
"""Parts outside of the decoder up to this size stay in memory."""


@dataclass(slots=True)
class _Part:
    """A module whose weights come and go.

    Attributes:
        module: The module.
        users: How many are using it now.
        held: Where its parameters were put, to be taken away again: module, name, stored parameter.
    """

    module: nn.Module
    users: int = 0
    held: list[tuple[nn.Module, str, StoredParameter]] = field(default_factory=list)


class Residency:
    """Which parts of a model are in memory; see `load_in_parts`.

    Attributes:
        device: Where the weights go.
        dtype: In which the model was loaded.
    """

    def __init__(self, folder: Path, model_map: ModelMap, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._folder = folder
        self._tensors = model_map.tensors
        self._stacked = model_map.stacked
        self._files: dict[str, TensorFile] = {}
        self._parts: dict[str, _Part] = {}

    def add(self, name: str, module: nn.Module) -> None:
        """Makes a module load its weights for each forward pass, unless they are there already."""
        self._parts[name] = _Part(module)
        forward = module.forward

        @wraps(forward)
        def loaded(*arguments: Any, **keywords: Any) -> Any:
            with self.resident(name):
                return forward(*arguments, **keywords)

        looks_up = type(module) is nn.Embedding
        module.forward = self._looking_up(module, forward) if looks_up else loaded

    @contextmanager
    def resident(self, name: str) -> Iterator[nn.Module]:
        """A part with its weights in memory for the length of a ``with`` block; blocks nest.

        Raises:
            ModelError: The checkpoint cannot be read.
        """
        part = self._parts[name]
        if part.users == 0:
            self._load(part)
        part.users += 1
        try:
            yield part.module
        finally:
            part.users -= 1
            if part.users == 0:
                self._free(part)

    def value(self, parameter: Tensor) -> Tensor:
        """The numbers of a parameter, wherever they are at the moment.

        Raises:
            ModelError: The checkpoint cannot be read.
        """
        if not isinstance(parameter, StoredParameter):
            return parameter.detach()
        if parameter.changes:
            return parameter.changed(self.read(parameter.source, parameter.base_dtype))
        return self.read(parameter.source, parameter.base_dtype, parameter.dtype)

    def read(self, name: str, base_dtype: torch.dtype, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of the checkpoint on the device of the model.

        Args:
            name: Name in the checkpoint.
            base_dtype: Dtype through which its numbers go.
            dtype: Dtype wanted; `base_dtype` when left out.

        Raises:
            ModelError: The checkpoint cannot be read.
        """
        dtype = dtype or base_dtype
        is_exact = dtype.itemsize >= base_dtype.itemsize and _stored_as(self._tensors[name].dtype, base_dtype)
        try:
            tensor = self._read(name, dtype if is_exact else None)
        except (OSError, ValueError, KeyError) as error:
            raise self._damaged(name, error) from error
        return tensor.to(self.device).to(base_dtype).to(dtype) if not is_exact else tensor.to(self.device)

    def _read(self, name: str, dtype: torch.dtype | None) -> Tensor:
        if (weight := self._stacked.get(name)) is not None:
            found = weight.read(self._file(name))
            return found if dtype is None else found.to(dtype)
        return self._file(name).read(name, dtype)

    def _looking_up(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
        def look_up(ids: Tensor) -> Tensor:
            weight = module.weight
            if not isinstance(weight, StoredParameter):
                found: Tensor = forward(ids)
                return found
            rows, places = ids.unique(return_inverse=True)
            try:
                read = self._file(weight.source).read_rows(weight.source, rows.tolist())
            except (OSError, ValueError, KeyError) as error:
                raise self._damaged(weight.source, error) from error
            return weight.changed(read.to(self.device, weight.base_dtype))[places]

        return look_up

    def _load(self, part: _Part) -> None:
        read: dict[int, nn.Parameter] = {}
        try:
            for module in part.module.modules():
                for name, parameter in module.named_parameters(recurse=False):
                    if isinstance(parameter, StoredParameter):
                        if id(parameter) not in read:
                            value = self.value(parameter)
                            read[id(parameter)] = nn.Parameter(value, requires_grad=False)
                        module._parameters[name] = read[id(parameter)]
                        part.held.append((module, name, parameter))
        except BaseException:
            self._free(part)
            raise

    def _free(self, part: _Part) -> None:
        for module, name, parameter in part.held:
            module._parameters[name] = parameter
        part.held.clear()
        if self.device.type == "cpu":
            _give_back()

    def _file(self, name: str) -> TensorFile:
        file = self._tensors[name].file
        if file not in self._files:
            self._files[file] = TensorFile(self._folder / file)
        return self._files[file]

    def _damaged(self, name: str, error: Exception) -> ModelError:
        return ModelError(
            f"{name} in {self._folder}", expected="its numbers", given=error, fix="fetch the weights again"
        )


def _give_back() -> None:
    """Hands free memory back to the system: glibc keeps what tensors of up to 32 MB leave inside its heap."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _stored_as(name: str, dtype: torch.dtype) -> bool:
    return {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}.get(name) is dtype


def parts_of(model: nn.Module, block_prefix: str) -> dict[str, nn.Module]:
    """Decoder blocks, and the modules that hang on the way from the root to them, by name.

    Args:
        model: The model.
        block_prefix: Path of the list of blocks.
    """
    steps = block_prefix.split(".")
    found = {}
    for depth, step in enumerate(steps):
        path = steps[:depth]
        for name, module in model.get_submodule(".".join(path)).named_children():
            if name != step:
                found[".".join([*path, name])] = module
    blocks = model.get_submodule(block_prefix).named_children()
    return found | {f"{block_prefix}.{name}": module for name, module in blocks}


def load_in_parts(
    folder: Path,
    model_map: ModelMap,
    device: torch.device,
    dtype: torch.dtype,
    *,
    allow_remote_code: bool = False,
) -> tuple[PreTrainedModel, Residency]:
    """A model whose large parts stay in the checkpoint until they are used.

    Args:
        folder: Hugging Face folder.
        model_map: Its structure.
        device: Where to compute.
        dtype: Of weights and activations.
        allow_remote_code: Run Python files of the folder.

    Raises:
        ModelError: A parameter of the model has no tensor of its name in the folder.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=allow_remote_code)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForImageTextToText.from_config(
            config, dtype=dtype, trust_remote_code=allow_remote_code
        )
    # Before parameters get a place on the disk: experts have names of their own there, or parts of a tensor.
    split_experts(model)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    _require_plain_names(model, model_map)
    residency = Residency(folder, model_map, device, dtype)
    stored = _stored_parameters(model, model_map)
    for owner, name, parameter in stored:
        owner._parameters[name] = parameter
    blocks = model_map.module_path(model_map.block_prefix)
    for name, module in parts_of(model, blocks).items():
        num_bytes = sum(parameter.nbytes for parameter in module.parameters())
        if name.startswith(f"{blocks}.") or num_bytes > KEPT_PART_BYTES:
            residency.add(name, module)
    in_parts = {id(p) for part in residency._parts.values() for p in part.module.parameters()}
    kept: dict[int, nn.Parameter] = {}
    for owner, name, parameter in stored:
        if id(parameter) not in in_parts:
            if id(parameter) not in kept:
                kept[id(parameter)] = nn.Parameter(residency.value(parameter), requires_grad=False)
            owner._parameters[name] = kept[id(parameter)]
    _make_buffers(model, device)
    return model, residency


def _require_plain_names(model: PreTrainedModel, model_map: ModelMap) -> None:
    tied = model.all_tied_weights_keys
    missing = [
        name
        for name, _ in model.named_parameters(remove_duplicate=False)
        if not {model_map.disk_name(path) for path in (name, tied.get(name, name))} & model_map.tensors.keys()
    ]
    if missing or model._keep_in_fp32_modules_strict:
        raise ModelError(
            model_map.architecture,
            expected="tensors under the names of the model's parameters, all of one dtype",
            given=f"none called {missing[0]}" if missing else "parts that stay in float32",
            fix="set model.residency to whole",
        )


def _stored_parameters(
    model: PreTrainedModel, model_map: ModelMap
) -> list[tuple[nn.Module, str, StoredParameter]]:
    """Every parameter with its place; tied ones are one object."""
    tied, made, found = model.all_tied_weights_keys, dict[str, StoredParameter](), []
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            source = model_map.disk_name(tied.get(full, full))
            if source not in made:
                made[source] = StoredParameter.of(source, parameter)
            found.append((module, name, made[source]))
    return found


def _make_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Computes the buffers that no checkpoint holds, such as rotary frequencies, as loading does."""
    for owner in (module for module in model.modules() if isinstance(module, PreTrainedModel)):
        for module in owner.children():
            _make_buffers_of(owner, module, device)


def _make_buffers_of(owner: PreTrainedModel, module: nn.Module, device: torch.device) -> None:
    if isinstance(module, PreTrainedModel):
        return
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_meta:
            module._buffers[name] = torch.empty_like(buffer, device=device)
            module._is_hf_initialized = False  # type: ignore[assignment]  # a mark that transformers sets
    if not getattr(module, "_is_hf_initialized", True):
        owner._initialize_weights(module)
    for child in module.children():
        _make_buffers_of(owner, child, device)
