// The producers' launchers. Addresses are of device memory; nothing is allocated, nothing waited for.
#include "produce/sources.cuh"

using namespace ocrquant;

extern "C" {

cudaError_t ocrquant_quantize(const uint16_t* x, int64_t stride, const OperandOut* out, cudaStream_t stream) {
    return launch_produce(Rows{x, stride, is_aligned(x, 2 * stride)}, *out, stream);
}

cudaError_t ocrquant_silu_mul(const uint16_t* gate_up, int64_t stride, const OperandOut* out, cudaStream_t stream) {
    const bool is_wide = is_aligned(gate_up, 2 * stride) && is_aligned(gate_up, 2 * out->width);
    return launch_produce(SiluMul{gate_up, stride, out->width, is_wide}, *out, stream);
}

cudaError_t ocrquant_gated_rms_norm(const uint16_t* o, int64_t o_stride, const uint16_t* z, int64_t z_stride, const float* weight,
                                    int64_t head_dim, float eps, const OperandOut* out, cudaStream_t stream) {
    const bool is_power = head_dim >= TURN && head_dim <= 32 * TURN && (head_dim & (head_dim - 1)) == 0;
    if (!is_power || out->width % head_dim != 0) return cudaErrorInvalidValue;
    const bool is_wide = is_aligned(o, 2 * o_stride) && is_aligned(z, 2 * z_stride);
    return launch_produce(GatedNorm{o, z, weight, o_stride, z_stride, head_dim, eps, is_wide}, *out, stream);
}

}  // extern "C"
