#pragma once

#include "delta/args.h"

namespace ocrquant {

struct GatedDeltaRowsArgs {
    DeltaRows rows;
    float* state;          // [slots, H, K, V]
    const int32_t* fresh;  // [N]
};

}  // namespace ocrquant
