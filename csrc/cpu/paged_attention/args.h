#pragma once

#include <cstdint>

namespace ocrquant {

// The cache holds bf16, or E4M3 codes where is_fp8. table_row: elements from one request's pages to the next one's.
// first_key: the first key that rows of a request see; null: all from 0.
struct PagedAttentionArgs {
    const uint16_t* q;
    const void *k_cache, *v_cache;
    const int32_t *page_table, *q_start, *kv_len, *first_key;
    uint16_t* out;
    int64_t requests, heads, kv_heads, dim, page_size, table_row;
    float scale, k_scale, v_scale;
    bool is_fp8, causal;
};

}  // namespace ocrquant
