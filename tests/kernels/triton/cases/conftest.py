"""These tests run on a GPU where there is one, else in Triton's interpreter, which has to be chosen before
Triton is imported: `tests/kernels/triton/test_cases.py` starts them so, in processes of their own.
"""

import os

import torch

IS_STARTED = os.environ.get("OCRQUANT_KERNELS") == "triton"
collect_ignore_glob = [] if IS_STARTED or torch.cuda.is_available() else ["test_*.py"]
