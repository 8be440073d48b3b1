"""What the package needs to know of a Hugging Face architecture: groups, norms, vision side, prompts.

The names below need no torch. Loading, encoding and transcription live in ``ocrquant.adapters.model``.
"""

from ocrquant.adapters.headers import SUPPORTED, model_folder, read_model_map
from ocrquant.adapters.patterns import Ineligible, PatternMatch, SearchSpace, match_patterns, search_space
from ocrquant.adapters.structure import Group, LinearInfo, ModelMap, NormFold, TensorInfo

__all__ = [
    "SUPPORTED",
    "Group",
    "Ineligible",
    "LinearInfo",
    "ModelMap",
    "NormFold",
    "PatternMatch",
    "SearchSpace",
    "TensorInfo",
    "match_patterns",
    "model_folder",
    "read_model_map",
    "search_space",
]
