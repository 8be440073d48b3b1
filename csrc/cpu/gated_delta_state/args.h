#pragma once

#include <cstdint>

namespace ocrquant {

// Sequences of one length, all dense. Value head h reads key head h / (H / G). Head sizes are multiples of 16.
struct GatedDeltaStateArgs {
    const void* mixed;      // bf16 or fp32 [B, T, 2 G K + H V], q | k | v
    const float* log_gate;  // [B, T, H]
    const float* beta;      // [B, T, H]
    float* state;           // [B, H, K, V]
    void* out;              // [B, T, H, V] in the type of mixed
    bool is_bf16;
    int64_t batch, length, key_heads, heads, key_dim, value_dim;
};

}  // namespace ocrquant
