"""What the package needs to know of a Hugging Face architecture: its linears, groups, norms, vision side and prompts.

The names below need no torch. Loading, encoding and transcription live in ``ocrquant.adapters.model``.
"""

from ocrquant.adapters.headers import SUPPORTED, model_folder, read_model_map
from ocrquant.adapters.structure import Group, LinearInfo, ModelMap, NormFold, TensorInfo

__all__ = [
    "SUPPORTED",
    "Group",
    "LinearInfo",
    "ModelMap",
    "NormFold",
    "TensorInfo",
    "model_folder",
    "read_model_map",
]
