"""Weights rounded by ModelOpt's calibration by maxima, as its exporter stores them.

Linears of a group share one global scale, that of the largest magnitude among them, as ModelOpt's exporter
makes fused ones do. Knows ModelOpt's quantizers. Does not know pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ocrquant.adapters import Group
from ocrquant.adapters.model import DocumentModel, Encoded
from ocrquant.formats import Precision, nvfp4
from ocrquant.formats.weights import FP8Weight, QuantizedWeight
from ocrquant.toolkits.missing import load_toolkit
from ocrquant.toolkits.modelopt_cpu import block_quantizer_on_cpu
from ocrquant.toolkits.native import modelopt_config

__all__ = ["rounded_by_modelopt"]


def rounded_by_modelopt(
    document: DocumentModel, batches: Sequence[Encoded], groups: Sequence[Group], precision: Precision
) -> dict[str, QuantizedWeight]:
    """Linears in one format, in the form that checkpoints store.

    Args:
        document: The model in float32, which is of no use afterwards.
        batches: Pages with their answers.
        groups: What to round.
        precision: The format.

    Raises:
        RecipeError: ModelOpt is not installed.
    """
    mtq = _load("modelopt.torch.quantization")
    path = document.map.module_path
    plan = {path(linear.name): precision for group in groups for linear in group.linears}

    def calibrate(model: Any) -> None:
        for batch in batches:
            model(**batch.forward_inputs(), use_cache=False)

    with torch.no_grad(), block_quantizer_on_cpu():
        model = mtq.quantize(document.model, modelopt_config(plan), calibrate)
    found = {}
    for group in groups:
        modules = {linear.name: model.get_submodule(path(linear.name)) for linear in group.linears}
        amax = torch.stack(
            [module.weight_quantizer.amax.amax().float() for module in modules.values()]
        ).amax()
        for name, module in modules.items():
            weight = module.weight.detach().float()
            found[name] = _nvfp4(weight, amax) if precision is Precision.NVFP4 else _fp8(weight)
    return found


def _nvfp4(weight: Tensor, amax: Tensor) -> QuantizedWeight:
    tensor = _load("modelopt.torch.quantization.qtensor").NVFP4QTensor
    decode_scale = nvfp4.to_modelopt(nvfp4.global_encode_scale(amax))
    quantized, block_scale, _ = tensor.quantize(weight, nvfp4.BLOCK_SIZE, None, decode_scale)
    return nvfp4.NVFP4Weight(
        packed=quantized._quantized_data,
        block_scale=block_scale.to(torch.float8_e4m3fn),
        # Its global scale multiplies, ours divides.
        encode_scale=nvfp4.from_modelopt(decode_scale.reshape(1)),
    )


def _fp8(weight: Tensor) -> QuantizedWeight:
    quantized, decode_scale = _load("modelopt.torch.quantization.qtensor").FP8QTensor.quantize(weight, axis=0)
    return FP8Weight(codes=quantized._quantized_data, decode_scale=decode_scale.float().reshape(-1, 1))


def _load(module: str) -> Any:
    return load_toolkit(module, "nvidia-modelopt", "weights.engine")
