#pragma once

#include <cstdint>

namespace ocrquant {

// Both commits copy `size` bytes at a time, so that they need not know what they move.
struct CommitStateArgs {
    char* state;         // [layers, slots, size]
    const char* states;  // [layers, slots, T, size]
    const int32_t* slots;
    const int32_t* accepted;
    int64_t requests, layers, num_slots, window, size;
};

struct CommitTailArgs {
    char* tail;          // [layers, slots, taps, size]
    const char* record;  // [layers, slots, T, size]
    const int32_t* slots;
    const int32_t* accepted;
    int64_t requests, layers, num_slots, window, taps, size;
};

}  // namespace ocrquant
