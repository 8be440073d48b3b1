#pragma once

#include <cstdint>

namespace ocrquant {

// position_axis: elements from one axis of `positions` to the next. to_bf16: round what is stored to bf16 values.
struct RopeTableArgs {
    const int32_t* positions;
    int64_t position_axis;
    const float* inv_freq;
    const int32_t* axis;
    float *cos, *sin;
    int64_t rows, half;
    bool to_bf16;
};

}  // namespace ocrquant
