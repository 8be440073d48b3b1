"""Exporting a large random model against copying its file: time, and the memory of a process that exports.

The model has the shape of Qwen3.5-4B; codes and scales are made up, since an export only passes them on.
Knows the export of a plan. Does not know how weights are rounded.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ocrquant.adapters import ModelMap, TensorInfo, build_model_map
from ocrquant.artifacts import (
    FileRecord,
    GroupInput,
    GroupRounding,
    KvScales,
    RoundedWeights,
    Rounding,
    weight_tensor_name,
)
from ocrquant.bench.random_model import text_shapes
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.timing import interleave, median_interval, ratio
from ocrquant.checkpoint import FILE_FORMATS, CheckpointReader, TensorSpec, plan_shards, write_shards
from ocrquant.export import write_checkpoint
from ocrquant.formats import Precision
from ocrquant.json_files import read_json
from ocrquant.recipe.sections import MAX_SHARD_BYTES

__all__ = ["Settings", "export_made", "make_model_folder", "make_rounding", "peak_of_process", "run"]

_GIB = 1 << 30
_DEALT = (Precision.NVFP4, Precision.FP8, Precision.BF16, Precision.NVFP4)
_PATTERN_BYTES = 1 << 20
_MAX_OVERHEAD_GIB = 2.0
_MAX_TIME_RATIO = 4.0

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """Size of the model, and what is written; the defaults are those of Qwen3.5-4B.

    Attributes:
        hidden_size: Width of the residual stream.
        num_hidden_layers: Decoder layers; every 4th has full attention.
        intermediate_size: Inner width of the MLP.
        num_attention_heads: Heads of full attention.
        num_key_value_heads: Heads of its keys and values.
        head_dim: Width of such a head.
        linear_num_key_heads: Key heads of Gated DeltaNet.
        linear_num_value_heads: Value heads of it.
        linear_key_head_dim: Width of a key head.
        linear_value_head_dim: Width of a value head.
        vocab_size: Rows of the embedding, which the head shares.
        format: On-disk format.
        folder: Where source and checkpoint are written, twice the model's size; the system's place for
            temporary files by default.
    """

    hidden_size: Positive = 2560
    num_hidden_layers: Positive = 32
    intermediate_size: Positive = 9216
    num_attention_heads: Positive = 16
    num_key_value_heads: Positive = 4
    head_dim: Positive = 256
    linear_num_key_heads: Positive = 16
    linear_num_value_heads: Positive = 32
    linear_key_head_dim: Positive = 128
    linear_value_head_dim: Positive = 128
    vocab_size: Positive = 248320
    format: Literal["compressed-tensors", "modelopt"] = "compressed-tensors"
    folder: Path | None = None

    @property
    def sizes(self) -> dict[str, Any]:
        """Keys of the text configuration."""
        return self.model_dump(exclude={"format", "folder"})


def run(settings: Settings, repeats: int) -> Report:
    """Exports and copies in turn; then once in a process of its own, to see its memory."""
    report = Report("export", settings, repeats)
    with tempfile.TemporaryDirectory(prefix="ocrquant-export-", dir=settings.folder) as place:
        root = Path(place)
        model_map = make_model_folder(root / "source", settings)
        rounding = make_rounding(root / "run", model_map)
        arms = {
            "copy": partial(_copy, root / "source", root / "copy"),
            "export": partial(export_made, root, settings.format),
        }
        seconds = interleave(arms, repeats=repeats, warmup=1)
        peak_bytes = peak_of_process(export_made, root, settings.format)
        source_bytes = _size(root / "source")
        written_bytes = _size(root / "out")
    largest = max(tensor.num_bytes for tensor in model_map.tensors.values())
    slower = ratio(seconds["export"], seconds["copy"])
    report.results = {
        "parameters": sum(tensor.num_elements for tensor in model_map.tensors.values()),
        "source_bytes": source_bytes,
        "rounded_bytes": rounding.tensors.num_bytes,
        "written_bytes": written_bytes,
        "largest_tensor_bytes": largest,
        "copy_seconds": median_interval(seconds["copy"]),
        "export_seconds": median_interval(seconds["export"]),
        "export_over_copy": slower,
        "peak_bytes": peak_bytes,
    }
    report.goals = [Goal("export over copy of the source, times", slower, at_most=_MAX_TIME_RATIO)]
    if peak_bytes is not None:
        overhead = (peak_bytes - largest) / _GIB
        what = "peak memory of the process above the largest tensor, GiB"
        report.goals.append(Goal(what, overhead, at_most=_MAX_OVERHEAD_GIB))
    report.notes = [
        "both arms end when everything is on the disk (fsync); the source may be in the page cache for both",
        "peak memory: VmHWM of a process that imports the package and exports once",
        "left out: SHA-256 of the rounded weights before and of the checkpoint behind, which the stage adds",
    ]
    return report


def make_model_folder(folder: Path, settings: Settings) -> ModelMap:
    """Writes a model of random bytes in bf16 and gives its structure."""
    config, shapes = text_shapes(settings.sizes)
    text = {**config.to_dict(), "tie_word_embeddings": True}
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": {"depth": 0},
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(outer, indent=2, default=str) + "\n", encoding="utf-8")
    specs = [TensorSpec(name, "BF16", tuple(shape)) for name, shape in sorted(shapes.items())]
    made = {spec.name: spec for spec in specs}
    write_shards(folder, plan_shards(specs, MAX_SHARD_BYTES), lambda name: _pattern(made[name]))
    return _map_of(folder)


def make_rounding(folder: Path, model_map: ModelMap) -> Rounding:
    """Writes codes and scales of the precision that each group is dealt."""
    groups = _plan(model_map)
    parts: dict[str, TensorSpec] = {}
    row = FILE_FORMATS["compressed-tensors"]
    for group in model_map.groups:
        precision = groups[group.name]
        for linear in group.linears if precision is not Precision.BF16 else ():
            shape = linear.out_features, linear.in_features
            for spec, part in zip(
                row.specs(linear.name, precision, *shape), row.parts[precision], strict=True
            ):
                name = weight_tensor_name(linear.name, precision, part.part)
                parts[name] = TensorSpec(name, spec.dtype, spec.shape)
    folder.mkdir(parents=True)
    write_shards(folder, plan_shards(parts.values(), 1 << 60), lambda name: _part(parts[name]))
    (folder / "model.safetensors").rename(folder / Rounding.TENSORS_NAME)
    rounding = Rounding(
        inputs={},
        num_held_back_pages=0,
        tensors=FileRecord.of(folder / Rounding.TENSORS_NAME),
        groups=[
            GroupRounding(
                group=group.name,
                precision=groups[group.name],
                linears=[linear.name for linear in group.linears],
                steps=[],
                error=None,
            )
            for group in model_map.groups
        ],
        group_inputs=[GroupInput(group=group.name, amax=1.0, encode_scale=1.0) for group in model_map.groups],
        norms=[],
        kv=[KvScales(name=name, k_decode_scale=1.0, v_decode_scale=1.0) for name in model_map.kv_attention],
    )
    rounding.save(folder)
    return rounding


def _plan(model_map: ModelMap) -> Mapping[str, Precision]:
    return {group.name: _DEALT[number % len(_DEALT)] for number, group in enumerate(model_map.groups)}


def _map_of(folder: Path) -> ModelMap:
    with CheckpointReader(folder) as reader:
        tensors = {s.name: TensorInfo(s.dtype, s.shape, "", s.num_bytes) for s in reader.specs.values()}
    return build_model_map(folder, read_json(folder / "config.json"), tensors)


def _pattern(spec: TensorSpec) -> Tensor:
    """Random bytes over and over: compressible only by what looks further back than a disk does."""
    base = torch.randint(
        256, (_PATTERN_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    data = base.repeat(-(-spec.num_bytes // _PATTERN_BYTES))[: spec.num_bytes]
    dtype = {"BF16": torch.bfloat16, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}[spec.dtype]
    return data.view(dtype).view(spec.shape)


def _part(spec: TensorSpec) -> Tensor:
    if not spec.name.endswith("_scale"):
        return _pattern(spec)
    dtype = torch.float32 if spec.dtype == "F32" else torch.float8_e4m3fn
    return torch.ones(spec.shape).to(dtype)


def _copy(source: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    for path in sorted(source.glob("*.safetensors")):
        shutil.copyfile(path, out / path.name)
        with (out / path.name).open("rb") as file:
            os.fsync(file.fileno())


def export_made(root: Path, file_format: str) -> None:
    """Exports what `make_model_folder` and `make_rounding` have made below a folder, to ``out``."""
    rounding, model_map = Rounding.load(root / "run"), _map_of(root / "source")
    # As the stage opens them, less the digest of the whole file.
    with RoundedWeights(root / "run" / Rounding.TENSORS_NAME, rounding) as weights:
        write_checkpoint(
            root / "source",
            root / "out",
            model_map=model_map,
            groups=_plan(model_map),
            weights=weights,
            kv=rounding.kv,
            file_format=file_format,
            max_shard_bytes=MAX_SHARD_BYTES,
        )


def peak_of_process(function: Callable[..., object], *arguments: object) -> int | None:
    """Most bytes that were resident in a process that called a function; None where the system does not say.

    Args:
        function: One of a module, which the process imports.
        arguments: What it is called with.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_call_and_tell, args=(function, arguments, theirs))
    process.start()
    theirs.close()
    try:
        peak = ours.recv()
    except EOFError:
        peak = None
    process.join()
    return peak if isinstance(peak, int) else None


def _call_and_tell(function: Callable[..., object], arguments: tuple[object, ...], pipe: Connection) -> None:
    function(*arguments)
    status = Path("/proc/self/status")
    text = status.read_text() if status.is_file() else ""
    found = [line.split() for line in text.splitlines() if line.startswith("VmHWM:")]
    pipe.send(int(found[0][1]) * 1024 if found else None)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
