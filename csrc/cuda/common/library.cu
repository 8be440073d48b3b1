// What the shared library says of itself.
#include "common/device.cuh"
#include "linear/arguments.cuh"
#include "produce/operand.cuh"
#include "replay/arguments.cuh"

using namespace ocrquant;

extern "C" {

// Sizes of the structures that Python mirrors.
int64_t ocrquant_operand_bytes() { return sizeof(OperandOut); }
int64_t ocrquant_replay_bytes() { return sizeof(ReplayWindow); }
int64_t ocrquant_linear_bytes() { return sizeof(LinearArgs); }
int64_t ocrquant_move_bytes() { return sizeof(CursorMove); }

const char* ocrquant_error_text(int32_t error) {
#if defined(OCRQUANT_EMULATED)
    return error == cudaErrorInvalidValue ? "invalid argument" : "no error";
#else
    return cudaGetErrorString(cudaError_t(error));
#endif
}

#if defined(OCRQUANT_EMULATED)
// Whether a block's threads run from the last to the first, and whether they pass barriers of the block without waiting.
void ocrquant_emulate(int32_t is_backwards, int32_t ignores_barriers) {
    emulated::machine().is_backwards = is_backwards != 0;
    emulated::machine().ignores_barriers = ignores_barriers != 0;
}
#endif

}  // extern "C"
