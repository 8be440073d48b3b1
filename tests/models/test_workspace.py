import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.operand import OperandSpec
from ocrquant.models.workspace import Workspace


@pytest.fixture
def workspace():
    return Workspace(torch.bfloat16, torch.device("cpu"))


def test_a_name_is_one_buffer(workspace):
    slot = workspace.slot("a", 8)
    assert workspace.slot("a", 8) == slot
    with pytest.raises(ShapeError, match="scratch buffer a"):
        workspace.slot("a", 9)
    with pytest.raises(ShapeError, match="scratch buffer a"):
        workspace.slot("a", 8, torch.float32)


def test_views_are_the_first_rows_and_stay_where_they_are(workspace):
    a, b = workspace.slot("a", 8), workspace.slot("b", None, torch.float32)
    part = workspace.part(a, lambda x: x[:, 2:6].unflatten(1, (2, 2)))
    workspace.reserve(5)
    view = workspace.view(3)
    assert view is workspace.view(3)
    assert view.rows(a).shape == (3, 8)
    assert view.rows(b).shape == (3,)
    assert view.part(part).shape == (3, 2, 2)
    assert view.part(part).data_ptr() == view.rows(a)[:, 2:].data_ptr()
    assert view.rows(a).data_ptr() == workspace.view(5).rows(a).data_ptr()
    assert view.rows(a).data_ptr() != view.rows(b).data_ptr()
    assert workspace.num_bytes == 5 * (8 * 2 + 4)


def test_views_survive_being_forgotten(workspace):
    slot = workspace.slot("a", 8)
    workspace.reserve(200)
    places = [workspace.view(rows).rows(slot).data_ptr() for rows in range(1, 201)]
    assert len(set(places)) == 1
    assert workspace.view(1).rows(slot).data_ptr() == places[0]
    assert len(workspace._views) <= 64


def test_operands_have_the_forms_asked_for_and_share_buffers(workspace):
    scale = torch.tensor([2.0])
    both = workspace.operand("x", 32, OperandSpec(plain=True, nvfp4_encode_scale=scale))
    plain = workspace.operand("x", 32, OperandSpec(plain=True))
    codes = workspace.operand("x", 32, OperandSpec(fp8=True))
    workspace.reserve(4)
    view = workspace.view(2)
    operand = view.operand(both)
    assert operand.plain.data_ptr() == view.operand(plain).plain.data_ptr()
    assert operand.fp8 is None
    assert operand.nvfp4.shape == (2, 16)
    assert operand.nvfp4_scale.shape == (2, 2)
    assert operand.encode_scale is scale
    assert view.operand(codes).plain is None
    assert view.operand(codes).fp8.shape == (2, 32)
    assert view.operand(codes).fp8_scale.shape == (2,)


def test_more_rows_than_reserved_are_refused(workspace):
    workspace.slot("a", 8)
    workspace.reserve(4)
    with pytest.raises(ShapeError, match="at most 4 rows, got 5"):
        workspace.view(5)


def test_buffers_that_captured_steps_write_to_are_not_replaced():
    workspace = Workspace(torch.float32, torch.device("cpu"))
    workspace.slot("x", 8)
    workspace.reserve(4)
    with pytest.raises(ShapeError, match="scratch buffers: expected to be made once"):
        workspace.reserve(4)
