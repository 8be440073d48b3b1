import pytest
import torch

from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.rounding import Rows, objective, output_error, quantize_input


def test_error_by_hand():
    weight = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    rounded = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    rows = Rows(torch.tensor([[1.0, 1.0], [3.0, 0.0]]), torch.tensor([0.75, 0.25]))
    # Outputs (1, 2) and (3, 0); errors (0, 1) and (0, 0).
    expected = 0.75 * 1.0 / (0.75 * 5.0 + 0.25 * 9.0)
    assert output_error([weight], [rounded], rows, rows.values) == pytest.approx(expected, rel=1e-6)


def test_linears_of_a_group_have_the_same_say(correlated_rows, random_weight, evenly):
    rows = evenly(correlated_rows(64, 32))
    small, large = random_weight(8, 32, 1), 1000.0 * random_weight(8, 32, 2)
    alone = [output_error([w], [w.bfloat16().float()], rows, rows.values) for w in (small, large)]
    rounded = [w.bfloat16().float() for w in (small, large)]
    assert output_error([small, large], rounded, rows, rows.values) == pytest.approx(sum(alone) / 2)


def test_wide_outputs_in_pieces_give_the_same(monkeypatch, correlated_rows, random_weight, evenly):
    rows, weight = evenly(correlated_rows(32, 32)), random_weight(100, 32)
    whole = output_error([weight], [weight.bfloat16().float()], rows, rows.values)
    monkeypatch.setattr(objective, "_OUTPUT_PIECE", 7)
    pieces = output_error([weight], [weight.bfloat16().float()], rows, rows.values)
    # The error is a difference of products some 2**-9 of their size: what float32 rounds in them in another
    # order (2**-24 each) is up to 2**-14 of it, on processors that order products of 7 and 100 columns apart.
    assert pieces == pytest.approx(whole, rel=2**-14)


def test_zero_outputs():
    rows, zero, one = Rows(torch.ones(2, 16), torch.full((2,), 0.5)), torch.zeros(1, 16), torch.ones(1, 16)
    assert output_error([zero], [zero], rows, rows.values) == 0.0
    assert output_error([zero], [one], rows, rows.values) == 1.0


def test_no_rows_no_error():
    rows = Rows(torch.zeros(0, 16), torch.zeros(0))
    assert output_error([torch.ones(2, 16)], [torch.zeros(2, 16)], rows, rows.values) == 0.0


def test_inputs_are_quantized_as_the_target_does(correlated_rows):
    x = correlated_rows(8, 32)
    scale = nvfp4.global_encode_scale(x.abs().amax())
    by_token = fp8.decode(fp8.encode(x, fp8.token_decode_scale(x)), fp8.token_decode_scale(x))
    assert torch.equal(quantize_input(x, Precision.FP8, scale), by_token)
    by_block = nvfp4.quantize_dequantize_activation(x, scale)
    assert torch.equal(quantize_input(x, Precision.NVFP4, scale), by_block)
    assert torch.equal(quantize_input(x, Precision.BF16, scale), x)


def test_second_moment_is_weighted():
    rows = Rows(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0.25, 0.75]))
    assert rows.second_moment().tolist() == [0.25 + 0.75 * 9.0, 1.0]
