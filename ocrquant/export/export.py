"""The stage that writes the checkpoint of a plan, for the server that is to read it.

Knows the source folder, the plan and the rounded weights. Computes no precision and rounds no weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ocrquant.adapters import ModelMap
from ocrquant.artifacts import Assignment, CheckpointRecord, KvScales, RoundedWeights, Rounding
from ocrquant.checkpoint import FILE_FORMATS, CheckpointReader, plain_config
from ocrquant.errors import AlreadyQuantizedError, ArtifactError
from ocrquant.export.names import linear_names, planned_precisions
from ocrquant.export.target import Target, check_target
from ocrquant.export.tensors import CheckpointTensors
from ocrquant.export.write import write_folder
from ocrquant.formats import FORMATS, Precision
from ocrquant.json_files import read_json
from ocrquant.recipe.sections import ExportSection

__all__ = ["FOLDER_NAME", "export_checkpoint", "export_choices", "write_checkpoint"]

FOLDER_NAME = "checkpoint"
"""Folder of the checkpoint inside a run folder."""


def export_choices(section: ExportSection) -> tuple[str, Target | None]:
    """Name of the format that a recipe asks for, and the server that is to read it.

    Raises:
        RecipeError: There is no such server.
    """
    target = None if section.target is None else Target.parse(section.target)
    by_target = "compressed-tensors" if target is None else target.default_format
    return section.format or by_target, target


def export_checkpoint(
    folder: Path,
    section: ExportSection,
    *,
    source: Path,
    model_map: ModelMap,
    assignment: Assignment,
    rounding: Rounding,
    inputs: Mapping[str, str],
) -> CheckpointRecord:
    """Writes the checkpoint of a plan into a run folder; the same inputs give the same bytes.

    Args:
        folder: The run folder, which holds the rounded weights.
        section: What to write.
        source: Folder of the model.
        model_map: Its structure.
        assignment: The plan.
        rounding: The rounded weights.
        inputs: SHA-256 of everything that the checkpoint is made from.

    Returns:
        The record of the checkpoint, not saved yet.

    Raises:
        ArtifactError: Plan, rounded weights and model do not belong together.
        ModelError: The source cannot be read.
        TargetError: The server that the recipe names cannot read the plan.
        OutputError: The folder is not writable or the disk is full.
        WeightValueError: A scale to be stored is not finite and positive.
    """
    file_format, target = export_choices(section)
    # The plan says what became of the recipe's wish, and a person may have edited it.
    has_kv = assignment.kv_cache == "fp8"
    if target is not None:
        _check_groups(model_map, assignment.groups)
        precisions = planned_precisions(model_map, assignment.groups)
        check_target(target, file_format, model_map, precisions, has_kv=has_kv)
    with rounding.open_weights(folder) as weights:
        weight_bytes = write_checkpoint(
            source,
            folder / FOLDER_NAME,
            model_map=model_map,
            groups=assignment.groups,
            weights=weights,
            kv=rounding.kv if has_kv else (),
            file_format=file_format,
            max_shard_bytes=section.max_shard_bytes,
        )
    groups = assignment.groups
    num_bits = sum(
        FORMATS[groups[group.name]].bits_per_weight * group.num_weights for group in model_map.groups
    )
    is_plain = not has_kv and set(groups.values()) == {Precision.BF16}
    return CheckpointRecord(
        inputs=dict(inputs),
        folder=FOLDER_NAME,
        format="bf16" if is_plain else file_format,
        bits_per_weight=num_bits / model_map.num_weights,
        weight_bytes=weight_bytes,
        contents=CheckpointRecord.scan(folder / FOLDER_NAME),
    )


def write_checkpoint(
    source: Path,
    out: Path,
    *,
    model_map: ModelMap,
    groups: Mapping[str, Precision],
    weights: RoundedWeights,
    kv: Sequence[KvScales] = (),
    file_format: str = "compressed-tensors",
    max_shard_bytes: int,
) -> int:
    """Writes a checkpoint folder as a whole or not at all.

    Tensors pass through one at a time, so memory does not grow with the model. All other files of the source
    are copied byte for byte; ``config.json`` gets one key more, and the format's own files are added. Where
    the plan quantizes nothing and the cache stays in bf16, the folder is a plain copy.

    Args:
        source: Folder of the model.
        out: Folder to write; what was there is replaced.
        model_map: Structure of the model.
        groups: Precision by group.
        weights: Rounded weights, open.
        kv: FP8 scales of the caches of all full-attention layers; none for a bf16 cache.
        file_format: Name of the format, one of ``FILE_FORMATS``.
        max_shard_bytes: Most bytes of tensors in a file.

    Returns:
        Bytes that the weights of all searched linears take, scales included.

    Raises:
        AlreadyQuantizedError: The source has a ``quantization_config``.
        ArtifactError: Groups or cache scales are not those of the model, or rounded weights are missing.
        ModelError: The source cannot be read.
        OutputError: The folder is not writable or the disk is full.
        ShapeError: A rounded weight does not have the shape of the model's.
        WeightValueError: A scale to be stored is not finite and positive.
    """
    _check_groups(model_map, groups)
    if kv:
        layers = {scales.name for scales in kv}
        fix = "run the stages of this model again"
        _check_names("cache scales", set(model_map.kv_attention), layers, fix)
    _check_plain(source)
    row = FILE_FORMATS[file_format]
    names = linear_names(model_map, planned_precisions(model_map, groups))
    with CheckpointReader(source) as reader:
        tensors = CheckpointTensors(reader, model_map, weights, groups, kv, row)
        write_folder(
            source,
            out,
            tensors=tensors,
            config=plain_config(source),
            configuration=row.describe(names, kv_cache=bool(kv)),
            tied_head=model_map.tied_head,
            max_shard_bytes=max_shard_bytes,
        )
        return tensors.weight_bytes()


def _check_groups(model_map: ModelMap, groups: Mapping[str, Precision]) -> None:
    plan = {group.name for group in model_map.groups}
    _check_names("groups of the plan", plan, set(groups), "mend assignment.yaml, or delete it and run again")


def _check_plain(source: Path) -> None:
    if "quantization_config" in read_json(source / "config.json"):
        given = "a quantization_config"
        fix = "take the original model"
        raise AlreadyQuantizedError(source / "config.json", expected="a model in bf16", given=given, fix=fix)


def _check_names(what: str, expected: set[str], given: set[str], fix: str) -> None:
    if odd := sorted(expected ^ given):
        raise ArtifactError(
            what,
            expected="exactly those of the model",
            given=", ".join(f"{name} {'missing' if name in expected else 'besides'}" for name in odd[:2]),
            fix=fix,
        )
