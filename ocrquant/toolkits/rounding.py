"""The stage `rounding` by another toolkit: its weights become our artefact; all later stages are the same.

Every group is rounded to every candidate format that fits it, on the same pages, and is kept as the toolkit
has it: nothing is tried against anything else. Scales of activations and caches are those of our statistics.
Knows which toolkit does what; does not know how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ocrquant.adapters import Group, ModelMap, NormFold, PageInput
from ocrquant.adapters.model import DocumentModel, Encoded
from ocrquant.artifacts import (
    GroupInput,
    GroupRounding,
    KvScales,
    NormSmoothing,
    Rounding,
    RunFolder,
    Statistics,
    tensor_name,
    weight_tensor_name,
)
from ocrquant.errors import WeightValueError
from ocrquant.formats import FORMATS, Precision, fp8, nvfp4
from ocrquant.formats.weights import QuantizedWeight, weight_tensors
from ocrquant.pages import Page, page_image
from ocrquant.progress import progress_bar
from ocrquant.toolkits.llm_compressor import rounded_by_llm_compressor
from ocrquant.toolkits.modelopt_weights import rounded_by_modelopt

__all__ = ["Engine", "round_by_toolkit"]

Engine = Literal["llm-compressor-gptq", "modelopt"]


def round_by_toolkit(
    engine: Engine,
    run: RunFolder,
    load: Callable[[torch.dtype], DocumentModel],
    pages: Sequence[Page],
    statistics: Statistics,
    candidates: Sequence[Precision],
    inputs: Mapping[str, str],
) -> Rounding:
    """Rounds all searched groups to all candidate formats; writes ``rounding.json`` and ``.safetensors``.

    Args:
        engine: The toolkit, and its method.
        run: The run folder.
        load: Loads the model in a dtype: toolkits rebuild what they are given.
        pages: Calibration pages, each with a text.
        statistics: What the statistics stage wrote into the same folder.
        candidates: `sensitivity.candidates` of the recipe.
        inputs: SHA-256 of everything that the stage is made from, by name.

    Raises:
        RecipeError: The toolkit is not installed.
        ArtifactError: The tensors of the statistics are not those that belong to it.
        ImageError: An image cannot be read.
        PageSizeError: A page exceeds the context of the model.
        OutputError: The folder is not writable or the disk is full.
    """
    stored = load(torch.bfloat16)
    model_map = stored.map
    batches = [stored.encode([_input(page)]) for page in pages]
    formats = sorted(
        (p for p in candidates if p is not Precision.BF16), key=lambda p: FORMATS[p].bits_per_weight
    )
    tensors: dict[str, Tensor] = {}
    groups: list[GroupRounding] = []
    with progress_bar(f"rounding by {engine}", len(formats), "formats") as advance:
        for precision in formats:
            fitting = [group for group in model_map.groups if group.reason_against(precision) is None]
            weights = _rounded(engine, load(torch.float32), batches, fitting, precision)
            for group in fitting:
                names = [linear.name for linear in group.linears]
                groups.append(
                    GroupRounding(group=group.name, precision=precision, linears=names, steps=[], error=None)
                )
                for name in names:
                    _check(engine, name, weights[name])
                    for suffix, tensor in weight_tensors(weights[name]).items():
                        tensors[weight_tensor_name(name, precision, suffix)] = tensor.cpu().contiguous()
            advance(1)
    amax = _input_amax(run, statistics, model_map)
    rounding = Rounding(
        inputs=dict(inputs),
        engine=engine,
        num_held_back_pages=0,
        tensors=run.save_tensors(Rounding.TENSORS_NAME, tensors),
        groups=groups,
        group_inputs=[_group_input(name, amax[name]) for name in dict.fromkeys(g.group for g in groups)],
        norms=[_norm(fold) for fold in model_map.norm_folds],
        kv=[_kv(layer.name, layer.k_amax, layer.v_amax) for layer in statistics.kv],
    )
    run.save(rounding)
    return rounding


def _input(page: Page) -> PageInput:
    return PageInput(page_image(page), page.kind, page.text, page.id)


def _rounded(
    engine: Engine,
    document: DocumentModel,
    batches: Sequence[Encoded],
    groups: Sequence[Group],
    precision: Precision,
) -> dict[str, QuantizedWeight]:
    if engine == "modelopt":
        return rounded_by_modelopt(document, batches, groups, precision)
    linears = [linear.name for group in groups for linear in group.linears]
    return rounded_by_llm_compressor(document, batches, linears, precision)


def _check(engine: Engine, name: str, weight: QuantizedWeight) -> None:
    """Refuses scales that are not finite, which toolkits give rows of zeros."""
    if not bool(weight.dequantize().isfinite().all()):
        raise WeightValueError(
            f"{name} in {weight.precision} by {engine}",
            expected="finite scales",
            given="NaN or Inf, as for a row of zeros",
            fix="round with weights.engine ocrquant",
        )


def _input_amax(run: RunFolder, statistics: Statistics, model_map: ModelMap) -> dict[str, float]:
    """Largest |x| of the input of each group over text and image."""
    tensors, found = statistics.load_tensors(run.path), {}
    for group in model_map.groups:
        name = group.linears[0].name
        text, image = (tensors[tensor_name(name, kind, "channel_amax")] for kind in ("text", "image"))
        found[group.name] = float(torch.maximum(text, image).amax())
    return found


def _group_input(group: str, amax: float) -> GroupInput:
    scale = nvfp4.exchangeable_scale(nvfp4.global_encode_scale(torch.tensor(amax)))
    return GroupInput(group=group, amax=amax, encode_scale=float(scale))


def _norm(fold: NormFold) -> NormSmoothing:
    return NormSmoothing(norm=fold.norm, linears=list(fold.linears), accepted=False, exponent=0.0)


def _kv(name: str, k_amax: float, v_amax: float) -> KvScales:
    k_scale, v_scale = fp8.static_decode_scale(torch.tensor([k_amax, v_amax])).tolist()
    return KvScales(name=name, k_decode_scale=k_scale, v_decode_scale=v_scale)
