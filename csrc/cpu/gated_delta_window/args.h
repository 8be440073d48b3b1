#pragma once

#include "delta/args.h"

namespace ocrquant {

struct GatedDeltaWindowArgs {
    DeltaRows rows;
    const float* state;  // [slots, H, K, V]
    float* states;       // [slots, T, H, K, V]
    int64_t window;      // T
};

}  // namespace ocrquant
