// The conversions by themselves, and the swizzled layout: what tests hold against ocrquant.formats, on a GPU the instructions too.
#include "common/scales.cuh"

namespace ocrquant {

constexpr int CONVERT_THREADS = 256;

// One value a thread; [n] each.
__global__ void __launch_bounds__(CONVERT_THREADS)
    convert(const float* x, int64_t count, uint16_t* bf16, uint8_t* e4m3, uint8_t* e2m1, bool is_portable) {
    const int64_t i = int64_t(blockIdx.x) * CONVERT_THREADS + threadIdx.x;
    if (i >= count) return;
    const float value = x[i];
    const float alone[8] = {value, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    bf16[i] = uint16_t(is_portable ? portable_bf16(value) : pair_bf16(value, 0.0f));
    e4m3[i] = uint8_t(is_portable ? portable_e4m3(value) : pair_e4m3(value, 0.0f));
    e2m1[i] = uint8_t(is_portable ? portable_e2m1(value) : eight_e2m1(alone) & 15u);
}

__global__ void __launch_bounds__(CONVERT_THREADS)
    swizzle_scales(const uint8_t* scale, int64_t rows, int64_t scales, uint8_t* swizzled) {
    const int64_t wide = swizzled_scales(scales), i = int64_t(blockIdx.x) * CONVERT_THREADS + threadIdx.x;
    const int64_t row = i / wide, at = i % wide;
    if (row >= swizzled_rows(rows)) return;
    swizzled[swizzled_offset(row, at, scales)] = row < rows && at < scales ? scale[row * scales + at] : 0;
}

}  // namespace ocrquant

using namespace ocrquant;

extern "C" {

cudaError_t ocrquant_convert(const float* x, int64_t count, uint16_t* bf16, uint8_t* e4m3, uint8_t* e2m1, int32_t is_portable,
                             cudaStream_t stream) {
    if (count <= 0) return cudaSuccess;
    const dim3 grid{unsigned(ceil_div(count, CONVERT_THREADS))};
    return launch(convert, grid, CONVERT_THREADS, 0, stream, x, count, bf16, e4m3, e2m1, is_portable != 0);
}

// E4M3 scales, row-major [R, s], into the layout of 128 by 4, padding written.
cudaError_t ocrquant_swizzle_scales(const uint8_t* scale, int64_t rows, int64_t scales, uint8_t* swizzled, cudaStream_t stream) {
    if (rows <= 0 || scales <= 0) return cudaSuccess;
    const int64_t bytes = swizzled_rows(rows) * swizzled_scales(scales);
    const dim3 grid{unsigned(ceil_div(bytes, CONVERT_THREADS))};
    return launch(swizzle_scales, grid, CONVERT_THREADS, 0, stream, scale, rows, scales, swizzled);
}

}  // extern "C"
