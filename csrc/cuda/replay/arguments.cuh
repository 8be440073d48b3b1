// What the ReplaySSM kernels are given; mirrored in ocrquant/kernels/cuda/arguments.py. Strides count elements.
#pragma once

#include <cstdint>

namespace ocrquant {

// One layer's rows, checkpoints and rings, and the cursors of all layers. ocrquant/kernels/replay has the words.
struct ReplayWindow {
    const uint16_t* mixed;  // bf16 [R, 2 G K + H V], q | k | v
    const uint16_t* a;      // bf16 [R, H]
    const uint16_t* b;      // bf16 [R, H]
    const float* a_log;     // [H]
    const float* dt_bias;   // [H]
    float* state;           // [slots, H, K, V]
    uint16_t* u;            // bf16 [slots, H, buf, V]
    uint16_t* k;            // bf16 [slots, G, buf, K]
    float* log_gate;        // [slots, H, buf]
    const int32_t* base;       // [slots]
    const int32_t* write_pos;  // [slots]
    const int32_t* flush;      // [slots]
    const int32_t* q_start;    // [N + 1]
    const int32_t* slots;      // [N], below zero: padding
    uint16_t* out;             // bf16 [R, H V]
    int64_t mixed_stride, a_stride, b_stride;
    int32_t requests, key_heads, heads, key_dim, value_dim;
    int32_t size, history;  // buf, a power of two; L
    int32_t accepted;       // whether a fold takes the rows in
};

// Cursors of a pool and what a step accepted.
struct CursorMove {
    int32_t* base;       // [slots]
    int32_t* write_pos;  // [slots]
    int32_t* flush;      // [slots]
    int32_t* flushes;    // [slots]
    const int32_t* slots;     // [N], below zero: padding
    const int32_t* accepted;  // [N] or null: one row each, which a fold has taken in
    int32_t requests, size, history, window;
    int32_t reset;
};

}  // namespace ocrquant
