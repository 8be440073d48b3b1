#pragma once

#include <cstdint>

namespace ocrquant {

// Strides in elements: from row to row and from head to head. Norms are null where the model has none. The cache holds bf16,
// or E4M3 codes where is_fp8.
struct AttentionInputsArgs {
    const uint16_t *q, *k, *v;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head;
    const float *q_norm, *k_norm, *cos, *sin;
    const int32_t* slot_mapping;
    uint16_t* out_q;
    void *k_cache, *v_cache;
    int64_t rows, heads, kv_heads, dim, half;
    float eps, k_scale, v_scale;
    bool is_fp8;
};

}  // namespace ocrquant
