import sys
from pathlib import Path

import pytest
import torch

from ocrquant.errors import DeviceError
from ocrquant.kernels import extension as extension_module
from ocrquant.kernels.selection import TRITON_OPS, choices, count_launches, implementation, use_native


def native():
    """Stands for a native implementation; only compared."""


def reference():
    """Stands for a reference."""


BF16 = torch.zeros(1, dtype=torch.bfloat16)


@pytest.fixture
def no_extension(monkeypatch):
    monkeypatch.setitem(sys.modules, "ocrquant._native", None)
    extension_module._load.cache_clear()
    extension_module._say_missing.cache_clear()
    yield
    extension_module._load.cache_clear()
    extension_module._say_missing.cache_clear()


def test_bf16_on_a_cpu_is_native():
    assert use_native("op", BF16)
    assert choices()["op"].implementation == "native"


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [(BF16.double(), "dtype torch.float64"), (BF16.to("meta"), "device meta")],
)
def test_others_are_not_and_say_why(tensor, reason):
    assert not use_native("op", tensor)
    assert choices()["op"].reason == reason


def test_the_variable_forces_the_reference(monkeypatch):
    monkeypatch.setenv("OCRQUANT_KERNELS", "reference")
    assert not use_native("op", BF16)
    assert choices()["op"].reason == "OCRQUANT_KERNELS=reference"


def test_the_variable_refuses_where_native_does_not_apply(monkeypatch):
    monkeypatch.setenv("OCRQUANT_KERNELS", "native")
    assert use_native("op", BF16)
    with pytest.raises(DeviceError, match=r"op op with OCRQUANT_KERNELS=native.*dtype torch.float32"):
        use_native("op", BF16.float())


def test_what_only_gpus_read_is_written_by_the_reference():
    run = implementation("silu_mul", BF16, native, reference, is_for_gpu=True)
    assert run is reference
    assert choices()["silu_mul"].reason == "a form of its operand that only GPUs read"
    assert implementation("silu_mul", BF16, native, reference) is native


def test_triton_on_a_cpu_is_its_interpreter_or_refused(monkeypatch):
    monkeypatch.setenv("OCRQUANT_KERNELS", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(DeviceError, match=r"op silu_mul with OCRQUANT_KERNELS=triton.*device cpu"):
        implementation("silu_mul", BF16, native, reference)
    # An op without a kernel in Triton runs its reference, and says why.
    assert implementation("op", BF16, native, reference) is reference
    assert choices()["op"].reason == "OCRQUANT_KERNELS=triton"


@pytest.mark.parametrize("op", TRITON_OPS)
def test_the_table_names_modules_that_are_there(op):
    path = Path(*TRITON_OPS[op].split(".")).with_suffix(".py")
    source = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    assert f"def {op}_triton(" in source


def test_a_missing_extension_is_said_once(no_extension, recwarn):
    assert not use_native("op", BF16)
    assert not use_native("op", BF16)
    assert [str(w.message) for w in recwarn if "not built" in str(w.message)] == [
        str(recwarn.list[0].message)
    ]
    assert "not built" in choices()["op"].reason


def test_launches_are_counted_by_name():
    with count_launches() as counter:
        use_native("x", BF16)
        use_native("x", BF16)
        use_native("y", BF16.float())
    use_native("x", BF16)
    assert counter == {"x": 2, "y": 1}
