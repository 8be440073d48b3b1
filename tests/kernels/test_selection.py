import sys

import pytest
import torch

from ocrquant.errors import DeviceError
from ocrquant.kernels import extension as extension_module
from ocrquant.kernels.selection import choices, count_launches, use_native

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
