#pragma once

#include "delta/args.h"

namespace ocrquant {

// One layer's checkpoints and rings, and the cursors of all layers.
struct ReplayRing {
    float* state;     // [slots, H, K, V]
    void* u;          // [slots, H, buf, V], fp32 or bf16
    void* k;          // [slots, G, buf, K], like u
    float* log_gate;  // [slots, H, buf]
    bool is_bf16;
    const int32_t* base;       // [slots]
    const int32_t* write_pos;  // [slots]
    const int32_t* flush;      // [slots]
    int64_t size, history;     // buf, a power of two; L
};

struct ReplayRowsArgs {
    DeltaRows rows;
    ReplayRing ring;
    bool accepted;
};

struct ReplayFoldArgs {
    ReplayRing ring;
    const int32_t* slots;  // [N]
    const int32_t* fresh;  // [N]
    int64_t requests, key_heads, heads, key_dim, value_dim;
};

struct MoveCursorsArgs {
    int32_t* base;
    int32_t* write_pos;
    int32_t* flush;
    int32_t* flushes;
    int64_t size, history, window;
    const int32_t* slots;     // [N]
    const int32_t* accepted;  // [N] or null: one row each, which a fold has taken in
    int64_t requests;
    bool reset;
};

}  // namespace ocrquant
