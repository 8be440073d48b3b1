import pytest
import torch

from ocrquant.errors import ModelError
from ocrquant.models.layers.rotary import Rotary, contiguous_axes, interleaved_axes, inverse_frequencies
from ocrquant.models.workspace import Workspace


def test_axes_of_qwen3_5():
    axes = interleaved_axes([11, 11, 10]).tolist()
    assert [j for j in range(32) if axes[j] == 1] == list(range(1, 32, 3))
    assert [j for j in range(32) if axes[j] == 2] == list(range(2, 30, 3))
    assert [j for j in range(32) if axes[j] == 0] == list(range(0, 31, 3))


def test_time_keeps_what_height_and_width_leave():
    assert interleaved_axes([4, 2, 2]).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]


def test_axes_of_paddleocr_vl():
    assert contiguous_axes([16, 24, 24]).tolist() == [0] * 16 + [1] * 24 + [2] * 24


def test_frequencies():
    expected = torch.tensor([1.0, 100.0**-0.25, 100.0**-0.5, 100.0**-0.75])
    torch.testing.assert_close(inverse_frequencies(100.0, 8), expected)


def test_sections_must_cover_the_frequencies():
    workspace = Workspace(torch.bfloat16, torch.device("cpu"))
    with pytest.raises(ModelError, match="mrope_section"):
        Rotary(workspace, inverse_frequencies(100.0, 8), contiguous_axes([1, 1, 1]))


def test_the_table_of_a_step():
    workspace = Workspace(torch.float32, torch.device("cpu"))
    rotary = Rotary(workspace, inverse_frequencies(100.0, 6), contiguous_axes([1, 1, 1]))
    workspace.reserve(2)
    scratch = workspace.view(2)
    rotary(torch.tensor([[1, 4], [2, 5], [3, 6]], dtype=torch.int32), scratch)
    angles = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) * inverse_frequencies(100.0, 6)
    torch.testing.assert_close(scratch.rows(rotary.cos), angles.cos())
    torch.testing.assert_close(scratch.rows(rotary.sin), angles.sin())
