"""A loaded Hugging Face model made ready for this package: every module stays, some get another form.

Names on disk find modules too, experts are linears of their own, layers add what belongs to them, and two
slow modules run faster. Knows modules and names; knows no page.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn
from transformers import PreTrainedModel

from ocrquant.adapters.deepstack import add_in_layers
from ocrquant.adapters.experts import split_experts
from ocrquant.adapters.qwen3_5_modules import use_lean_modules
from ocrquant.adapters.structure import ModelMap, exchange_prefix

__all__ = ["decoder_of", "prepare_modules"]


class _NamedAsOnDisk(PreTrainedModel):  # type: ignore[misc]
    """A model whose modules are found by the names of their tensors on disk, as well as by their own."""

    names_on_disk: tuple[tuple[str, str], ...]

    def get_submodule(self, target: str) -> nn.Module:
        """The module of either name."""
        with suppress(AttributeError):
            found: nn.Module = super().get_submodule(exchange_prefix(target, self.names_on_disk))
            return found
        for before, after in self.names_on_disk:
            # What holds a renamed module, such as a head that lies elsewhere on disk.
            if before.rpartition(".")[0] == target:
                target = after.rpartition(".")[0]
                break
        own: nn.Module = super().get_submodule(target)
        return own


def decoder_of(model: PreTrainedModel, model_map: ModelMap) -> nn.Module:
    """The module with embedding, decoder layers and final norm."""
    path = model_map.module_path(model_map.block_prefix).rpartition(".")[0]
    decoder: nn.Module = model.get_submodule(path)
    return decoder


def prepare_modules(model: PreTrainedModel, model_map: ModelMap, device: torch.device | None = None) -> None:
    """Changes a loaded model in place; a second time it changes nothing.

    Args:
        model: The model.
        model_map: Its structure.
        device: Where it computes; where its weights are when left out.
    """
    if model_map.renamed and not isinstance(model, _NamedAsOnDisk):
        # Plans and statistics name linears as the checkpoint does; so does whoever looks them up here.
        kind = type(model)
        body = {"__module__": kind.__module__, "names_on_disk": model_map.renamed}
        model.__class__ = type(kind.__name__, (_NamedAsOnDisk, kind), body)
    use_lean_modules(model, device)
    split_experts(model)
    add_in_layers(decoder_of(model, model_map))
