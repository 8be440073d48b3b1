#pragma once

#include <cstdint>

namespace ocrquant {

// Strides in elements: from row to row and from head to head. cos and sin: [rows, dim / 2].
struct VisionRopeArgs {
    uint16_t *q, *k;
    int64_t q_row, q_head, k_row, k_head;
    const float *cos, *sin;
    int64_t rows, heads, dim;
};

}  // namespace ocrquant
