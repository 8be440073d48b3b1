"""Structure is read without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ocrquant import adapters
from ocrquant.adapters import model

CODE = """
import sys
from ocrquant import adapters
found = adapters.read_model_map(sys.argv[1])
adapters.search_space(found, ["fp8", "nvfp4"], ["lm_head"])
print(len(found.groups), "torch" in sys.modules, "transformers" in sys.modules)
"""


def test_map_and_patterns_need_no_torch(tiny_model_folder):
    command = [sys.executable, "-c", CODE, str(tiny_model_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["17", "False", "False"]


def test_names_that_need_torch_are_found_at_their_first_use():
    for name in adapters.__all__:
        assert getattr(adapters, name) is not None
    assert adapters.load_model is model.load_model
    with pytest.raises(AttributeError, match="load_modell"):
        _ = adapters.load_modell
