#pragma once

#include "delta/args.h"

namespace ocrquant {

// What each row of a window does to a state: [.., slots, T, H, ..]; of one layer, or of all in order.
struct WindowRecords {
    float* k;      // [K]
    float* u;      // [V]
    float* decay;  // [1]
};

struct RecordWindowArgs {
    DeltaRows rows;
    const float* state;  // [slots, H, K, V]
    WindowRecords records;
    int64_t window;  // T
};

struct RedoWindowArgs {
    float* state;  // [layers, slots, H, K, V]
    WindowRecords records;
    const int32_t* slots;
    const int32_t* accepted;
    int64_t requests, layers, num_slots, window, heads, key_dim, value_dim;
};

}  // namespace ocrquant
