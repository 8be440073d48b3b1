#pragma once

#include <cstdint>

namespace ocrquant {

// All dense. uint16_t is bf16; weights and their gradients are fp32, and gradients are written, not added.

// y = x rsqrt(mean x^2 + eps) (1 + weight); forward is the op rms_norm.
struct UnitNormBackwardArgs {
    const uint16_t *d_y, *x;  // [rows, width]
    const float* weight;      // [width]
    uint16_t* d_x;
    float* d_weight;
    int64_t rows, width;
    float eps;
};

// y = silu(gate) up
struct SwigluArgs {
    const uint16_t *gate, *up;
    uint16_t* y;
    int64_t count;
};

struct SwigluBackwardArgs {
    const uint16_t *d_y, *gate, *up;
    uint16_t *d_gate, *d_up;
    int64_t count;
};

// Causal depthwise convolution of four taps and SiLU, split into q | k | v; q and k divided by their heads' lengths, q also
// multiplied by q_factor.
struct ShortConvArgs {
    const uint16_t* mixed;  // [B, T, C], C = 2 G K + the width of v
    const float* taps;      // [4, C], the oldest input's first
    float *q, *k, *v;       // [B, T, G K], [B, T, G K], [B, T, C - 2 G K]
    int64_t batch, length, channels, key_heads, key_dim;
    float q_factor;
};

struct ShortConvBackwardArgs {
    ShortConvArgs forward;  // its outputs are not there
    const float *d_q, *d_k, *d_v;
    uint16_t* d_mixed;
    float* d_taps;
};

// y = o rsqrt(mean o^2 + eps) weight silu(z), a row a token and head.
struct GatedNormArgs {
    const float* o;       // [rows, dim]
    const uint16_t* z;    // [rows, dim]
    const float* weight;  // [dim]
    uint16_t* y;          // [rows, dim]
    int64_t rows, dim;
    float eps;
};

struct GatedNormBackwardArgs {
    GatedNormArgs forward;  // y is not there
    const uint16_t* d_y;
    float* d_o;
    uint16_t* d_z;
    float* d_weight;
};

}  // namespace ocrquant
