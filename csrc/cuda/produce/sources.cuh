// What the producers compute: rows as they are, SiLU of the gate times up, the gated RMS norm.
#pragma once

#include "produce/produce.cuh"

namespace ocrquant {

// Rows as they are.
struct Rows {
    const uint16_t* x;  // bf16 [R, w]
    int64_t stride;
    bool is_wide;

    OCRQUANT_DEVICE Eight eight(int64_t row, int64_t column, int64_t count) const {
        return load_eight(x + row * stride + column, count, is_wide);
    }
};

// round(round(silu(gate)) * up), gate and up the halves of a row.
struct SiluMul {
    const uint16_t* gate_up;  // bf16 [R, 2 w]
    int64_t stride, width;
    bool is_wide;

    OCRQUANT_DEVICE Eight eight(int64_t row, int64_t column, int64_t count) const {
        const uint16_t* const from = gate_up + row * stride + column;
        const Eight gate = load_eight(from, count, is_wide), up = load_eight(from + width, count, is_wide);
        Eight y;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t gated = pair_bf16(silu(low_half(gate.pairs[i])), silu(high_half(gate.pairs[i])));
            y.pairs[i] = pair_bf16(low_half(gated) * low_half(up.pairs[i]), high_half(gated) * high_half(up.pairs[i]));
        }
        return y;
    }
};

// Per head: h = round(o / rms), h = round(h * round(w)), round(h * silu(z)). A head is V / 8 lanes of a warp, V a power of two
// from 8 to 256.
struct GatedNorm {
    const uint16_t* o;  // bf16 [R, H V]
    const uint16_t* z;  // bf16 [R, H V]
    const float* weight;  // [V]
    int64_t o_stride, z_stride, head_dim;
    float eps;
    bool is_wide;

    OCRQUANT_DEVICE Eight eight(int64_t row, int64_t column, int64_t count) const {
        const Eight values = load_eight(o + row * o_stride + column, count, is_wide);
        const Eight gates = load_eight(z + row * z_stride + column, count, is_wide);
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            squares = fmaf(low_half(values.pairs[i]), low_half(values.pairs[i]), squares);
            squares = fmaf(high_half(values.pairs[i]), high_half(values.pairs[i]), squares);
        }
        for (int lanes = 1; lanes < head_dim / TURN; lanes *= 2) squares += shuffle_xor(squares, lanes);
        const float scale = 1.0f / sqrtf(squares / float(head_dim) + eps);
        const float* const weights = weight + column % head_dim;
        Eight y;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t w = count > 0 ? pair_bf16(weights[2 * i], weights[2 * i + 1]) : 0;
            uint32_t h = pair_bf16(low_half(values.pairs[i]) * scale, high_half(values.pairs[i]) * scale);
            h = pair_bf16(low_half(h) * low_half(w), high_half(h) * high_half(w));
            y.pairs[i] = pair_bf16(low_half(h) * silu(low_half(gates.pairs[i])), high_half(h) * silu(high_half(gates.pairs[i])));
        }
        return y;
    }
};

}  // namespace ocrquant
