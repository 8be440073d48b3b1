"""What the package needs to know of a Hugging Face architecture: groups, norms, vision side, prompts.

The structure of a model is read without torch; the names that load and run one import it at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocrquant.adapters.families import vision_modules
from ocrquant.adapters.headers import SUPPORTED, build_model_map, drafter_folder, model_folder, read_model_map
from ocrquant.adapters.patterns import Ineligible, PatternMatch, SearchSpace, match_patterns, search_space
from ocrquant.adapters.structure import Group, LinearInfo, ModelMap, NormFold, TensorInfo

if TYPE_CHECKING:
    from ocrquant.adapters.devices import resolve_device
    from ocrquant.adapters.encoding import Encoded, PageInput
    from ocrquant.adapters.model import DocumentModel, Transcript, load_model, open_model

__all__ = [
    "SUPPORTED",
    "DocumentModel",
    "Encoded",
    "Group",
    "Ineligible",
    "LinearInfo",
    "ModelMap",
    "NormFold",
    "PageInput",
    "PatternMatch",
    "SearchSpace",
    "TensorInfo",
    "Transcript",
    "build_model_map",
    "drafter_folder",
    "load_model",
    "match_patterns",
    "model_folder",
    "open_model",
    "read_model_map",
    "resolve_device",
    "search_space",
    "vision_modules",
]

_NEED_TORCH = {
    "DocumentModel": "model",
    "Encoded": "encoding",
    "PageInput": "encoding",
    "Transcript": "model",
    "load_model": "model",
    "open_model": "model",
    "resolve_device": "devices",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
