#pragma once

#include <cstdint>

namespace ocrquant {

// Rows of N requests as the gated delta rule reads them; strides count elements. Head sizes are multiples of 16.
struct DeltaRows {
    const uint16_t* mixed;  // bf16 [R, 2 G K + H V], q | k | v
    int64_t mixed_stride;
    const uint16_t* a;  // bf16 [R, H]
    int64_t a_stride;
    const uint16_t* b;  // bf16 [R, H]
    int64_t b_stride;
    const float* a_log;    // [H]
    const float* dt_bias;  // [H]
    const int32_t* q_start;  // [N + 1]
    const int32_t* slots;    // [N], below zero: padding
    uint16_t* out;           // bf16 [R, H V]
    int64_t requests, key_heads, heads, key_dim, value_dim;
};

}  // namespace ocrquant
