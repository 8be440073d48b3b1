"""Tensors of a safetensors file, against the library that wrote it."""

import struct

import pytest
import torch
from safetensors.torch import save_file

from ocrquant import tensor_file
from ocrquant.tensor_file import TensorFile

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn]
DTYPES += [torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool]


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    tensors = {str(dtype): (torch.randn(5, 3) * 4).to(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "long": torch.randn(1000).bfloat16()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tensors, tmp_path / "model.safetensors"


def test_every_dtype_comes_back_bit_for_bit(saved):
    tensors, path = saved
    with TensorFile(path) as file:
        assert set(file.names()) == set(tensors)
        for name, tensor in tensors.items():
            found = file.read(name)
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert (
                found.numpy(force=True).tobytes() == tensor.numpy(force=True).tobytes()
                if (tensor.dtype not in (torch.bfloat16, torch.float8_e4m3fn))
                else torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))
            )


def test_conversion_in_pieces_equals_one_conversion(saved, monkeypatch):
    tensors, path = saved
    monkeypatch.setattr(tensor_file, "_PIECE_BYTES", 14)
    with TensorFile(path) as file:
        assert torch.equal(file.read("long", torch.float32), tensors["long"].float())
        assert torch.equal(file.read("torch.float32", torch.bfloat16), tensors["torch.float32"].bfloat16())
        assert file.read("empty", torch.bfloat16).shape == (0, 4)


def test_rows_are_read_alone(saved):
    tensors, path = saved
    with TensorFile(path) as file:
        assert torch.equal(file.read_rows("torch.bfloat16", [4, 0, 4]), tensors["torch.bfloat16"][[4, 0, 4]])
        with pytest.raises(IndexError, match="row 5 of 5"):
            file.read_rows("torch.bfloat16", [5])


def test_parts_are_read_alone(tmp_path):
    tensor = torch.arange(2 * 5 * 3).reshape(2, 5, 3).bfloat16()
    save_file({"stack": tensor}, tmp_path / "model.safetensors")
    with TensorFile(tmp_path / "model.safetensors") as file:
        assert torch.equal(file.read_part("stack", 1, 2, 3), tensor[1, 2:5])
        assert file.read_part("stack", 0, 5, 0).shape == (0, 3)
        for index, first, count in [(2, 0, 1), (0, 3, 3), (0, -1, 1)]:
            with pytest.raises(IndexError):
                file.read_part("stack", index, first, count)


def test_a_file_that_ends_early_is_refused(saved):
    path = saved[1]
    path.write_bytes(path.read_bytes()[:-8])
    with TensorFile(path) as file:
        last = max(file.names(), key=lambda name: file._entries[name]["data_offsets"][1])
        with pytest.raises(OSError, match="in the middle of a tensor"):
            file.read(last)


@pytest.mark.parametrize("data", [b"", b"abc", struct.pack("<Q", 4) + b"{]{]"])
def test_a_file_of_another_kind_is_refused(tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ValueError):  # noqa: PT011 - JSON and ours
        TensorFile(tmp_path / "file")
