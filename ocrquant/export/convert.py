"""One exported folder to another format, without the run folder: other names, reciprocals and configuration.

Knows an exported folder and the structure of its model. Rounds nothing: every code and every block scale
stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ocrquant.adapters import ModelMap, TensorInfo, build_model_map
from ocrquant.checkpoint import FILE_FORMATS, FileFormat, StoredCheckpoint, plain_config
from ocrquant.errors import ModelError, OutputError, RecipeError
from ocrquant.export.names import linear_names
from ocrquant.export.target import Target, check_target
from ocrquant.export.tensor_list import TensorList
from ocrquant.export.write import write_folder
from ocrquant.formats import Precision
from ocrquant.json_files import read_json
from ocrquant.recipe.sections import MAX_SHARD_BYTES

__all__ = ["ConvertedTensors", "convert_checkpoint"]


class ConvertedTensors(TensorList):
    """The tensors of an exported folder in another format, in its own order; cache scales come last.

    Args:
        stored: The folder, open.
        file_format: The format to write.
    """

    def __init__(self, stored: StoredCheckpoint, file_format: FileFormat) -> None:
        super().__init__(file_format)
        done = set()
        scales = {name for item in stored.kv for name in stored.format.kv_tensors(item.name)}
        for name, spec in stored.specs.items():
            if name in stored.parts:
                linear = stored.parts[name][0]
                if linear not in done:
                    read = partial(stored.part, linear)
                    self.add_linear(linear, stored.linears[linear], stored.shape(linear), read)
                done.add(linear)
            elif name not in scales:
                self.add(spec, partial(stored.tensor, name))
        self.add_kv(stored.kv)


def convert_checkpoint(
    folder: Path,
    out: Path,
    *,
    target: Target | None = None,
    file_format: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> FileFormat:
    """Writes an exported folder again, in another format; as a whole or not at all.

    Args:
        folder: A folder in one of the formats, written by this package or by another one.
        out: Folder to write; a quantized checkpoint that was there is replaced, anything else is refused.
        target: Server that is to read it; what it cannot serve is refused before anything is written.
        file_format: Format to write; that of the target where left out, and the other one without a target.
        max_shard_bytes: Most bytes of tensors in a file.

    Returns:
        The format that was written.

    Raises:
        RecipeError: There is no such format.
        ModelError: The folder is not quantized, or in a scheme that this package does not compute.
        TargetError: The target cannot serve it.
        OutputError: `out` is the folder itself, holds something else, is not writable, or the disk is full.
    """
    _refuse_other_contents(out)
    with StoredCheckpoint(folder) as stored:
        if not stored.linears and not stored.kv:
            raise ModelError(folder, expected="a quantized checkpoint", given="none", fix="serve it as it is")
        model_map = build_model_map(folder, stored.config, _unquantized(stored))
        precisions = _precisions(folder, model_map, stored.linears)
        chosen = file_format or (target.default_format if target else _other(stored.format))
        if chosen not in FILE_FORMATS:
            expected = " or ".join(FILE_FORMATS)
            raise RecipeError("--format", expected=expected, given=chosen, fix="correct the name")
        if target:
            check_target(target, chosen, model_map, precisions, has_kv=bool(stored.kv))
        tensors = ConvertedTensors(stored, FILE_FORMATS[chosen])
        write_folder(
            folder,
            out,
            tensors=tensors,
            config=plain_config(folder),
            configuration=FILE_FORMATS[chosen].describe(
                linear_names(model_map, precisions), kv_cache=bool(stored.kv)
            ),
            tied_head=model_map.tied_head,
            max_shard_bytes=max_shard_bytes,
        )
    return FILE_FORMATS[chosen]


def _refuse_other_contents(out: Path) -> None:
    """A folder is replaced as a whole: one with other files in it is somebody's, and a mistyped name."""
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / "config.json").is_file() or "quantization_config" not in read_json(out / "config.json"):
        raise OutputError(
            out,
            expected="no such folder, an empty one, or a quantized checkpoint to replace",
            given="a folder with other files",
            fix="name another folder",
        )


def _other(file_format: FileFormat) -> str:
    return next(name for name in FILE_FORMATS if name != file_format.name)


def _unquantized(stored: StoredCheckpoint) -> dict[str, TensorInfo]:
    """The tensors that the folder had before it was quantized, as far as a structure asks."""
    found: dict[str, TensorInfo] = {}
    scales = {name for item in stored.kv for name in stored.format.kv_tensors(item.name)}
    for name, spec in stored.specs.items():
        if name not in stored.parts and name not in scales:
            found[name] = TensorInfo(spec.dtype, spec.shape, "", spec.num_bytes)
    for linear in stored.linears:
        rows, columns = stored.shape(linear)
        found[f"{linear}.weight"] = TensorInfo("BF16", (rows, columns), "", 2 * rows * columns)
    return dict(sorted(found.items()))


def _precisions(folder: Path, model_map: ModelMap, linears: Mapping[str, Precision]) -> dict[str, Precision]:
    """Precision of every linear of the decoder.

    Raises:
        ModelError: A quantized linear is none of the decoder's, or a group has two precisions.
    """
    group_of = model_map.group_of()
    known = {linear.name for linear in model_map.linears()} | set(model_map.kept)
    if odd := sorted(set(linears) - known):
        raise ModelError(
            f"{odd[0]} in {folder}",
            expected="quantized linears of the decoder alone",
            given=linears[odd[0]],
            fix="export the model with this package",
        )
    found = {name: linears.get(name, Precision.BF16) for name in sorted(known)}
    for name, precision in found.items():
        group = group_of.get(name)
        if group and any(found[member.name] is not precision for member in group.linears):
            raise ModelError(
                f"group {group.name} in {folder}",
                expected="one precision for all of its linears",
                given=", ".join(f"{member.name} {found[member.name]}" for member in group.linears),
                fix="export the model with this package",
            )
    return found
