"""The stage that writes the checkpoint: rounded weights in place of the chosen linears, all else as it was.

Knows the source folder, the plan and the rounded weights. Computes no precision and rounds no weight.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ocrquant.adapters import ModelMap
from ocrquant.artifacts import (
    Assignment,
    CheckpointRecord,
    KvScales,
    RoundedWeights,
    Rounding,
    atomic_folder,
)
from ocrquant.checkpoint import (
    CheckpointReader,
    LinearNames,
    copy_other_files,
    plan_shards,
    quantization_config,
    with_quantization_config,
    write_shards,
)
from ocrquant.errors import ArtifactError
from ocrquant.export.tensors import CheckpointTensors
from ocrquant.formats import FORMATS, Precision
from ocrquant.recipe.sections import ExportSection

__all__ = ["FOLDER_NAME", "export_checkpoint", "write_checkpoint"]

FOLDER_NAME = "checkpoint"
"""Folder of the checkpoint inside a run folder."""


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
        OutputError: The folder is not writable or the disk is full.
        WeightValueError: A scale to be stored is not finite and positive.
    """
    with rounding.open_weights(folder) as weights:
        weight_bytes = write_checkpoint(
            source,
            folder / FOLDER_NAME,
            model_map=model_map,
            groups=assignment.groups,
            weights=weights,
            kv=rounding.kv if section.kv_cache == "fp8" else (),
            max_shard_bytes=section.max_shard_bytes,
        )
    groups = assignment.groups
    num_bits = sum(
        FORMATS[groups[group.name]].bits_per_weight * group.num_weights for group in model_map.groups
    )
    is_plain = section.kv_cache != "fp8" and set(groups.values()) == {Precision.BF16}
    return CheckpointRecord(
        inputs=dict(inputs),
        folder=FOLDER_NAME,
        format="bf16" if is_plain else section.format,
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
    max_shard_bytes: int,
) -> int:
    """Writes a checkpoint folder as a whole or not at all.

    Tensors pass through one at a time, so memory does not grow with the model. All other files of the source
    are copied byte for byte; ``config.json`` gets one key more. Where the plan quantizes nothing and the
    cache stays in bf16, the folder is a plain copy and ``config.json`` stays as it is.

    Args:
        source: Folder of the model.
        out: Folder to write; what was there is replaced.
        model_map: Structure of the model.
        groups: Precision by group.
        weights: Rounded weights, open.
        kv: FP8 scales of the caches of all full-attention layers; none for a bf16 cache.
        max_shard_bytes: Most bytes of tensors in a file.

    Returns:
        Bytes that the weights of all searched linears take, scales included.

    Raises:
        ArtifactError: Groups or cache scales are not those of the model, or rounded weights are missing.
        ModelError: The source cannot be read.
        OutputError: The folder is not writable or the disk is full.
        ShapeError: A rounded weight does not have the shape of the model's.
        WeightValueError: A scale to be stored is not finite and positive.
    """
    plan = {group.name for group in model_map.groups}
    _check_names("groups of the plan", plan, set(groups), "mend assignment.yaml, or delete it and run again")
    if kv:
        layers = {scales.name for scales in kv}
        fix = "run the stages of this model again"
        _check_names("cache scales", set(model_map.kv_attention), layers, fix)
    config = quantization_config(_linear_names(model_map, groups), kv_cache=bool(kv))
    config_bytes = with_quantization_config(source, config)
    _remove_leftovers(out)
    with CheckpointReader(source) as reader:
        tensors = CheckpointTensors(reader, model_map, weights, groups, kv)
        shards = plan_shards(tensors.specs, max_shard_bytes)
        with atomic_folder(out) as temporary:
            copy_other_files(source, temporary)
            (temporary / "config.json").write_bytes(config_bytes)
            write_shards(temporary, shards, tensors.make)
        return tensors.weight_bytes([linear.name for linear in model_map.linears()])


def _linear_names(model_map: ModelMap, groups: Mapping[str, Precision]) -> LinearNames:
    precisions = {linear.name: groups[group.name] for group in model_map.groups for linear in group.linears}
    # Matrices alone: the norms of those heads are no linears, and only linears are looked up.
    mtp = {
        name.removesuffix(".weight")
        for name in model_map.mtp
        if name.endswith(".weight") and len(model_map.tensors[name].shape) == 2
    }
    return LinearNames(
        precisions=precisions | dict.fromkeys(model_map.kept, Precision.BF16),
        block_prefix=model_map.block_prefix,
        untouched=(*model_map.vision_linears, *sorted(mtp)),
    )


def _check_names(what: str, expected: set[str], given: set[str], fix: str) -> None:
    if odd := sorted(expected ^ given):
        raise ArtifactError(
            what,
            expected="exactly those of the model",
            given=", ".join(f"{name} {'missing' if name in expected else 'besides'}" for name in odd[:2]),
            fix=fix,
        )


def _remove_leftovers(out: Path) -> None:
    """Deletes what killed exports to the same folder left beside it."""
    for path in out.parent.glob(f".{out.name}.*.part"):
        shutil.rmtree(path, ignore_errors=True)
