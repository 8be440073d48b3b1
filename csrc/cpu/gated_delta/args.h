#pragma once

#include <cstdint>

namespace ocrquant {

// Whole sequences, all dense fp32: q, k [B, T, G, K]; v, out [B, T, H, V]; log_gate, beta [B, T, H]. Value head h reads key
// head h / (H / G). Head sizes are multiples of 16.
struct GatedDeltaSequences {
    const float *q, *k, *v, *log_gate, *beta;
    int64_t batch, length, key_heads, heads, key_dim, value_dim;
};

struct GatedDeltaArgs {
    GatedDeltaSequences in;
    float* out;
};

struct GatedDeltaBackwardArgs {
    GatedDeltaSequences in;
    const float* d_out;
    float *d_q, *d_k, *d_v, *d_log_gate, *d_beta;
};

}  // namespace ocrquant
