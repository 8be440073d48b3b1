"""Fixtures of the format tests."""

import pytest
import torch


@pytest.fixture
def conversion_without_saturation(monkeypatch):
    """Makes conversion to float8 turn what lies beyond 464 into NaN, as older torch versions did."""
    convert = torch.Tensor.to

    def to(tensor, *args, **kwargs):
        if torch.float8_e4m3fn in args and tensor.dtype != torch.float8_e4m3fn:
            tensor = tensor.masked_fill(tensor.abs() > 464, torch.nan)
        return convert(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    assert torch.tensor([465.0]).to(torch.float8_e4m3fn).float().isnan().all()
