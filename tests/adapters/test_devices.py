"""Names of devices."""

from __future__ import annotations

import pytest
import torch

from ocrquant.adapters import resolve_device
from ocrquant.errors import DeviceError, EnvironmentVariableError


@pytest.fixture
def gpus(monkeypatch):
    def pretend(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    monkeypatch.delenv("OCRQUANT_DEVICE", raising=False)
    return pretend


@pytest.mark.parametrize(
    ("count", "name", "wanted"),
    [
        (0, None, "cpu"),
        (0, "auto", "cpu"),
        (2, None, "cuda:0"),
        (2, "auto", "cuda:0"),
        (2, "cpu", "cpu"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
    ],
)
def test_names(gpus, count, name, wanted):
    gpus(count)
    assert resolve_device(name) == torch.device(wanted)


@pytest.mark.parametrize(
    ("count", "name"), [(0, "cuda"), (2, "cuda:2"), (2, "gpu"), (2, "cuda:x"), (2, "cpu:0"), (2, "cuda:-1")]
)
def test_refused(gpus, count, name):
    gpus(count)
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert name in str(caught.value)


def test_environment(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setenv("OCRQUANT_DEVICE", "cuda:1")
    assert resolve_device() == torch.device("cuda:1")
    assert resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("OCRQUANT_DEVICE", "gpu")
    with pytest.raises(EnvironmentVariableError):
        resolve_device()
