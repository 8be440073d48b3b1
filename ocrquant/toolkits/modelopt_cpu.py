"""ModelOpt's NVFP4 fake quantization on a CPU.

ModelOpt 0.47 computes dynamic block scales by a Triton or CUDA kernel and refuses CPU tensors ("amax must be
a CUDA tensor for dynamic block quantization"). The arithmetic is that of `ocrquant.formats.nvfp4`, so these
few lines stand in for the kernel where tensors are on a CPU; on a GPU ModelOpt's own kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from ocrquant.formats import nvfp4
from ocrquant.formats.precision import NVFP4_BLOCK_SIZE
from ocrquant.toolkits.missing import load_toolkit

__all__ = ["block_quantizer_on_cpu", "fake_nvfp4"]

_E2M1_BITS, _E4M3_BITS = (4, 2), (8, 4)
"""Bits and exponent bits, as ModelOpt counts them."""


@contextmanager
def block_quantizer_on_cpu() -> Iterator[None]:
    """Lets ModelOpt's NVFP4 quantizers run on CPU tensors for the length of a ``with`` block."""
    module = load_toolkit("modelopt.torch.quantization.tensor_quant", "nvidia-modelopt", "ModelOpt")
    original: Callable[..., Tensor] = module.dynamic_block_quantize_op

    def quantize(inputs: Tensor, block_size: int, amax: Tensor, *bits: int) -> Tensor:
        is_nvfp4 = (block_size, *bits) == (NVFP4_BLOCK_SIZE, *_E2M1_BITS, *_E4M3_BITS)
        if inputs.is_cuda or not is_nvfp4:
            return original(inputs, block_size, amax, *bits)
        return fake_nvfp4(inputs, amax)

    module.dynamic_block_quantize_op = quantize
    try:
        yield
    finally:
        module.dynamic_block_quantize_op = original


def fake_nvfp4(inputs: Tensor, amax: Tensor) -> Tensor:
    """Values rounded to NVFP4 and back, in their own shape and dtype.

    Args:
        inputs: [..., in], any float dtype.
        amax: Largest magnitude that the global scale is made for, any shape; its maximum counts.
    """
    encode_scale = nvfp4.global_encode_scale(amax.detach().amax().float()).reshape(1)
    return nvfp4.quantize_dequantize_activation(inputs, encode_scale).to(inputs.dtype)
