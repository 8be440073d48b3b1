"""From a model's name to its map, reading only its configuration and the headers of its weights.

Knows which architectures are supported and what makes a folder unusable. Loads no torch and no weight.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ocrquant
from ocrquant.adapters.builder import build_map
from ocrquant.adapters.families import FAMILIES
from ocrquant.adapters.generic import guess_map
from ocrquant.adapters.safetensors_headers import folder_tensors
from ocrquant.adapters.structure import ModelMap, TensorInfo
from ocrquant.errors import AlreadyQuantizedError, ModelError
from ocrquant.json_files import read_json

__all__ = ["SUPPORTED", "build_model_map", "drafter_folder", "model_folder", "read_model_map"]

SUPPORTED: tuple[str, ...] = tuple(FAMILIES)
"""Class names of the Hugging Face models whose structure is known."""

PACKAGE = Path(ocrquant.__file__).resolve().parent
"""Not from importlib.resources: an editable install answers with two folders at once, the extension's too."""

SHIPPED = {"pico": "pico/model"}
"""Name of a model that comes with the package -> its folder inside the package."""

SHIPPED_DRAFTERS = {"pico-dflash": "pico/drafters/dflash", "pico-dflash2": "pico/drafters/dflash2"}
"""The same for drafters of speculative decoding."""

FLOAT_DTYPES = frozenset({"BF16", "F16", "F32"})
PROCESSING_FILES = (
    ("tokenizer.json", "vocab.json", "tokenizer.model"),
    ("preprocessor_config.json", "processor_config.json"),
)
"""Of each row at least one must be there."""


def model_folder(name_or_path: str | Path) -> Path:
    """The folder of a model: that of a shipped one by name (``pico``), else the path itself.

    Raises:
        ModelError: There is no such folder.
    """
    train = "train the model with python -m ocrquant.pico.train"
    return _folder(name_or_path, SHIPPED, "a Hugging Face model", train)


def drafter_folder(name_or_path: str | Path) -> Path:
    """The folder of a drafter: that of a shipped one by name (``pico-dflash2``), else the path itself.

    Raises:
        ModelError: There is no such folder.
    """
    train = "train one with ocrquant drafter train"
    return _folder(name_or_path, SHIPPED_DRAFTERS, "a drafter", train)


def _folder(name_or_path: str | Path, shipped: Mapping[str, str], what: str, train: str) -> Path:
    inside = shipped.get(str(name_or_path))
    folder = PACKAGE / inside if inside else Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder
    if inside:
        fix = f"reinstall the package, or {train}"
        raise ModelError(name_or_path, expected=f"its folder at {folder}", given="none", fix=fix)
    raise ModelError(
        name_or_path,
        expected=f"a folder of {what}, or one of {', '.join(shipped)}",
        given="a file" if folder.exists() else "no such folder",
        fix="correct the path",
    )


def _check_quantization(folder: Path, config: Mapping[str, Any]) -> None:
    found = [key for key in ("quantization_config", "compression_config") if config.get(key)]
    found += ["hf_quant_config.json"] if (folder / "hf_quant_config.json").exists() else []
    if found:
        raise AlreadyQuantizedError(
            folder,
            expected="a model in bf16",
            given=f"a quantized one ({found[0]})",
            fix="take the original model",
        )


def _check_dtypes(folder: Path, model_map: ModelMap) -> None:
    for linear in (
        linear for group in (*model_map.groups, *model_map.kept_groups) for linear in group.linears
    ):
        dtype = model_map.tensors[f"{linear.name}.weight"].dtype
        if dtype not in FLOAT_DTYPES:
            raise AlreadyQuantizedError(
                f"{linear.name}.weight in {folder}",
                expected=f"one of {', '.join(sorted(FLOAT_DTYPES))}",
                given=dtype,
                fix="take the original model",
            )


def _architecture(folder: Path, config: Mapping[str, Any], allow_generic: bool) -> str:
    named = config.get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else "no architecture"
    if name in SUPPORTED or (allow_generic and named):
        return name
    near = difflib.get_close_matches(name, SUPPORTED, n=1, cutoff=0.0)
    raise ModelError(
        folder / "config.json",
        expected=f"one of the architectures {', '.join(SUPPORTED)}",
        given=name,
        fix=f"the nearest one supported is {near[0]}; --allow-generic guesses the structure and says how",
    )


def _check_code(folder: Path, config: Mapping[str, Any], allow_remote_code: bool) -> None:
    if config.get("auto_map") and not allow_remote_code:
        raise ModelError(
            folder / "config.json",
            expected="no Python files of its own",
            given="auto_map",
            fix="set model.allow_remote_code if you trust them",
        )


def _check_processing(folder: Path) -> None:
    for names in PROCESSING_FILES:
        if not any((folder / name).is_file() for name in names):
            raise ModelError(
                folder,
                expected=" or ".join(names),
                given="none of them",
                fix="copy tokenizer and image processor there",
            )


def read_model_map(
    path: str | Path, allow_remote_code: bool = False, *, allow_generic: bool = False
) -> ModelMap:
    """The map of a model from its configuration and tensor headers.

    Args:
        path: Folder, or the name of a shipped model.
        allow_remote_code: Accept a folder whose configuration names Python files to run.
        allow_generic: Guess the structure of an architecture that is not known.

    Raises:
        ModelError: Unsupported architecture, missing or damaged files, weights that are not safetensors,
            remote code.
        AlreadyQuantizedError: The weights are quantized.
    """
    folder = model_folder(path)
    config = read_json(folder / "config.json")
    _check_quantization(folder, config)
    _check_code(folder, config, allow_remote_code)
    _architecture(folder, config, allow_generic)
    tensors = folder_tensors(folder)
    _check_processing(folder)
    model_map = build_model_map(folder, config, tensors, allow_generic=allow_generic)
    _check_dtypes(folder, model_map)
    return model_map


def build_model_map(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    *,
    allow_generic: bool = False,
) -> ModelMap:
    """The map of a model that need not be a folder in bf16, from what it says of itself.

    Args:
        folder: For errors.
        config: What ``config.json`` holds.
        tensors: All tensors as they are, or were, before anything was quantized.
        allow_generic: Guess the structure of an architecture that is not known.

    Raises:
        ModelError: Unsupported architecture, or a configuration that lacks a key or contradicts the tensors.
    """
    architecture = _architecture(folder, config, allow_generic)
    try:
        if architecture in FAMILIES:
            return build_map(architecture, FAMILIES[architecture], config, tensors)
        return guess_map(architecture, config, tensors, folder)
    except KeyError as error:
        raise ModelError(
            folder / "config.json", expected=f"a key {error}", given="none", fix="fetch the file again"
        ) from error
