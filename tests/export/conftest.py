from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from ocrquant.adapters import ModelMap, read_model_map
from ocrquant.artifacts import (
    FileRecord,
    GroupInput,
    GroupRounding,
    KvScales,
    NormSmoothing,
    Rounding,
    norm_tensor_name,
    weight_tensor_name,
    write_tensors,
)
from ocrquant.checkpoint import CheckpointReader
from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.formats.weights import FP8Weight, scale_columns, weight_tensors
from ocrquant.rounding.smoothing import fold_norm


@dataclass
class RoundedModel:
    """A source folder, and a run folder with all its groups rounded to nearest."""

    source: Path
    run: Path
    model_map: ModelMap
    rounding: Rounding

    def plan(self, *precisions: str) -> dict[str, Precision]:
        """Precisions dealt out to the groups in turn."""
        return {
            group.name: Precision(precisions[number % len(precisions)])
            for number, group in enumerate(self.model_map.groups)
        }


def float32(value: float) -> float:
    """The nearest number that a checkpoint can store."""
    return torch.tensor(value).item()


def round_model(source: Path, run: Path, *, smoothing: bool = True) -> RoundedModel:
    """Rounds every group both ways; smoothing factors lie between 1/2 and 2 and have no reason."""
    model_map = read_model_map(source)
    generator = torch.Generator().manual_seed(3)
    tensors, norms, factors = {}, [], {}
    with CheckpointReader(source) as reader:
        for fold in model_map.norm_folds:
            weight = reader.read(f"{fold.norm}.weight")
            wanted = torch.exp2(torch.rand(len(weight), generator=generator) * 2 - 1)
            folded, exact = fold_norm(weight, wanted, offset=fold.offset)
            norms.append(
                NormSmoothing(norm=fold.norm, linears=list(fold.linears), accepted=smoothing, exponent=0.5)
            )
            if smoothing:
                tensors[norm_tensor_name(fold.norm, "weight")] = folded
                tensors[norm_tensor_name(fold.norm, "smoothing")] = exact
                factors |= dict.fromkeys(fold.linears, exact)
        for group in model_map.groups:
            weights = {linear.name: reader.read(f"{linear.name}.weight").float() for linear in group.linears}
            weights = {n: scale_columns(w, factors[n]) if n in factors else w for n, w in weights.items()}
            amaxes = (w.abs().amax() for w in weights.values())
            shared = nvfp4.exchangeable_scale(nvfp4.shared_global_encode_scale(*amaxes))
            for name, weight in weights.items():
                decode_scale = fp8.weight_decode_scale(weight, "channel")
                rounded = (
                    FP8Weight(codes=fp8.encode(weight, decode_scale), decode_scale=decode_scale),
                    nvfp4.quantize(weight, shared),
                )
                for quantized in rounded:
                    for part, tensor in weight_tensors(quantized).items():
                        tensors[weight_tensor_name(name, quantized.precision, part)] = tensor.clone()
    run.mkdir(parents=True, exist_ok=True)
    write_tensors(run / Rounding.TENSORS_NAME, tensors)
    rounding = Rounding(
        inputs={},
        num_held_back_pages=0,
        tensors=FileRecord.of(run / Rounding.TENSORS_NAME),
        groups=[
            GroupRounding(
                group=group.name,
                precision=precision,
                linears=[linear.name for linear in group.linears],
                steps=[],
                error=None,
            )
            for group in model_map.groups
            for precision in (Precision.FP8, Precision.NVFP4)
        ],
        group_inputs=[
            GroupInput(
                group=group.name,
                amax=6.0,
                encode_scale=nvfp4.exchangeable_scale(torch.tensor([448.0])).item(),
            )
            for group in model_map.groups
        ],
        norms=norms,
        kv=[
            KvScales(name=name, k_decode_scale=float32(0.013), v_decode_scale=float32(0.0021))
            for name in model_map.kv_attention
        ],
    )
    rounding.save(run)
    return RoundedModel(source=source, run=run, model_map=model_map, rounding=rounding)


@pytest.fixture(scope="session")
def rounded(tiny_model_folder, tmp_path_factory) -> RoundedModel:
    return round_model(tiny_model_folder, tmp_path_factory.mktemp("run"))
