#pragma once

#include <cstdint>

namespace ocrquant {

struct CausalConvArgs {
    const uint16_t* x;  // bf16 [R, C]
    int64_t x_stride;
    const uint16_t* weight;  // bf16 [C, 4], the oldest input's tap first
    uint16_t* tail;          // bf16 [slots, 3, C]
    const int32_t* q_start;  // [N + 1]
    const int32_t* slots;    // [N], below zero: padding
    const int32_t* fresh;    // [N]
    uint16_t* out;           // bf16 [R, C]
    uint16_t* record;        // bf16 [slots, T, C] or null
    int64_t window;          // T
    int64_t requests, channels;
};

}  // namespace ocrquant
