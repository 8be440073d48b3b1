"""Weights and inputs with the structure of a trained layer: correlated channels, some of them loud."""

import pytest
import torch

from ocrquant.rounding import LayerInput, Rows


def correlated_rows(num_rows, width, seed=0, loud=()):
    """float32 [rows, width] whose channels share a few directions; ``loud`` ones are 20 times larger."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width // 4, width, generator=torch.Generator().manual_seed(99))
    rows = torch.randn(num_rows, width // 4, generator=generator) @ mixing
    rows += 0.3 * torch.randn(num_rows, width, generator=generator)
    rows[:, list(loud)] *= 20.0
    return rows


def random_weight(out_features, in_features, seed=0):
    return torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(seed)) * 0.05


def evenly(values):
    return Rows(values, torch.full((len(values),), 1.0 / len(values)))


def layer_input(width, *, loud=(), fit=None, held_back=None):
    fit = correlated_rows(512, width, 1, loud) if fit is None else fit
    held_back = correlated_rows(512, width, 2, loud) if held_back is None else held_back
    amax = torch.maximum(fit.abs().amax(0), held_back.abs().amax(0))
    return LayerInput(amax, fit.T @ fit / len(fit), evenly(fit), evenly(held_back))


@pytest.fixture(name="correlated_rows")
def correlated_rows_fixture():
    return correlated_rows


@pytest.fixture(name="random_weight")
def random_weight_fixture():
    return random_weight


@pytest.fixture(name="layer_input")
def layer_input_fixture():
    return layer_input


@pytest.fixture(name="evenly")
def evenly_fixture():
    return evenly
