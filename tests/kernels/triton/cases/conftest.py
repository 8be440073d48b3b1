"""These tests run on a GPU where there is one, else in Triton's interpreter, which has to be chosen before
Triton is imported: `tests/kernels/triton/test_cases.py` starts them so, in processes of their own.
"""

import os
from pathlib import Path

import pytest
import torch

IS_STARTED = os.environ.get("OCRQUANT_KERNELS") == "triton"
collect_ignore_glob = [] if IS_STARTED or torch.cuda.is_available() else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if not IS_STARTED and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
