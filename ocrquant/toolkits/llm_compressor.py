"""Weights rounded by llm-compressor's GPTQ.

Runs its ``oneshot`` on a model in float32, so that the grid values which it leaves in the weights are exact
and their codes can be read back. Knows llm-compressor's modifier. Does not know pages, nor which format a
plan will take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ocrquant.adapters.model import DocumentModel, Encoded
from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.formats.weights import FP8Weight, QuantizedWeight
from ocrquant.toolkits.missing import load_toolkit

__all__ = ["rounded_by_llm_compressor"]

_SCHEMES = {Precision.FP8: "FP8_DYNAMIC", Precision.NVFP4: "NVFP4"}

_MORE_FUSED = ("in_proj_qkv", "in_proj_z")
"""Linears that servers fuse into one global scale, and that llm-compressor 0.14 does not know of."""


def rounded_by_llm_compressor(
    document: DocumentModel, batches: Sequence[Encoded], linears: Sequence[str], precision: Precision
) -> dict[str, QuantizedWeight]:
    """Linears in one format, in the form that checkpoints store.

    Args:
        document: The model in float32, which is of no use afterwards.
        batches: Pages with their answers, one each: llm-compressor would count padding as data.
        linears: Names in the map.
        precision: The format.

    Raises:
        RecipeError: llm-compressor is not installed.
    """
    paths = {name: document.map.module_path(name) for name in linears}
    arguments = {"scheme": _SCHEMES[precision], "targets": list(paths.values()), "ignore": []}
    modifier = _load(".modifiers.gptq").GPTQModifier(**arguments)
    _run(document, batches, [modifier])
    return {name: _stored(document.model.get_submodule(path), precision) for name, path in paths.items()}


def _load(part: str) -> Any:
    return load_toolkit(f"llmcompressor{part}", "llmcompressor", "weights.engine")


def _run(document: DocumentModel, batches: Sequence[Encoded], modifiers: Sequence[Any]) -> None:
    inputs: Any = [batch.forward_inputs() for batch in batches]
    data: Any = DataLoader(inputs, batch_size=None)
    with _fused_names():
        _load("").oneshot(
            model=document.model,
            dataset=data,
            # It wants one and does not use it, since the pages are tensors already.
            processor=object(),
            recipe=list(modifiers),
            num_calibration_samples=len(batches),
            pipeline="basic",
        )


@contextmanager
def _fused_names() -> Iterator[None]:
    """Gives linears that servers fuse one global scale, those of Gated DeltaNet too."""
    names: list[tuple[str, ...]] = _load(".observers.helpers").FUSED_LAYER_NAMES
    is_new = _MORE_FUSED not in names
    if is_new:
        names.append(_MORE_FUSED)
    try:
        yield
    finally:
        if is_new:
            names.remove(_MORE_FUSED)


@torch.no_grad()
def _stored(module: nn.Module, precision: Precision) -> QuantizedWeight:
    """The codes behind a weight that lies on its grid, with llm-compressor's scales."""
    parts: Mapping[str, Tensor] = dict(module.named_parameters())
    weight, scale = parts["weight"].detach().float(), parts["weight_scale"].detach().float()
    if precision is Precision.FP8:
        codes = fp8.encode(weight, scale)
        return FP8Weight(codes=codes, decode_scale=scale)
    # Global scales divide, as in our formats.
    encode_scale = parts["weight_global_scale"].detach().float().reshape(1)
    return nvfp4.quantize(weight, encode_scale, scale.to(torch.float8_e4m3fn))
