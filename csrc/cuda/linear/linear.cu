// Launchers of the small products.
#include "linear/linear.cuh"

namespace ocrquant {

template <class Format>
cudaError_t launch_linear(const LinearArgs& args, cudaStream_t stream) {
    const int64_t parts = ceil_div(args.rows, LINEAR_ROWS);
    const bool is_aligned_all = is_aligned(args.x, 2 * args.x_stride) && is_aligned(args.codes, 0);
    if (args.inputs % Format::INPUTS != 0 || !is_aligned_all || parts > MOST_PARTS) return cudaErrorInvalidValue;
    if (args.rows <= 0 || args.outputs <= 0) return cudaSuccess;
    const dim3 grid{unsigned(ceil_div(args.outputs, OUTPUTS)), unsigned(parts)};
    return launch(small_linear<Format>, grid, LINEAR_THREADS, 0, stream, args);
}

}  // namespace ocrquant

using namespace ocrquant;

extern "C" {

cudaError_t ocrquant_linear_nvfp4(const LinearArgs* args, cudaStream_t stream) { return launch_linear<Fp4>(*args, stream); }

cudaError_t ocrquant_linear_fp8(const LinearArgs* args, cudaStream_t stream) { return launch_linear<Fp8>(*args, stream); }

}  // extern "C"
