#pragma once

#include <cstdint>

namespace ocrquant {

// Strides in elements: from row to row and from head to head.
struct PackedAttentionArgs {
    const uint16_t *q, *k, *v;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head;
    const int32_t* starts;
    int64_t segments, heads, dim;
    float scale;
    uint16_t* out;
};

}  // namespace ocrquant
