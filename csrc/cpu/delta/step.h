// One token of the gated delta rule on one head's state [K, V]. Include after isa.h.
//
//   u = beta (v - e^g S^T k)      o = e^g S^T q + (k . q) u      S <- e^g S + k u^T
//
// Both products are taken of the old state, so that it comes from memory once; the update finds it in a cache. Every sum
// runs over K in order, one fused step after the other: `accumulate` in products.h gives the same bits.
#pragma once

#include "delta/terms.h"

namespace ocrquant::OCRQUANT_ISA::delta {

// Rows of the state that are worked on together, so that what all of them need stays in registers for longer.
constexpr int64_t TOGETHER = 4;

// hk = S^T k and hq = S^T q, [V] each. The factors are copied first: the compiler cannot know that stores miss them.
inline void read_state(const float* state, int64_t key_dim, int64_t value_dim, const float* k, const float* q, float* hk,
                       float* hq) {
    for (int64_t v = 0; v < value_dim; ++v) hk[v] = hq[v] = 0.f;
    for (int64_t i = 0; i < key_dim; i += TOGETHER) {
        const float* rows = state + i * value_dim;
        Lanes keys[TOGETHER], queries[TOGETHER];
        for (int64_t j = 0; j < TOGETHER; ++j) keys[j] = all(k[i + j]), queries[j] = all(q[i + j]);
        for (int64_t v = 0; v < value_dim; v += LANES) {
            Lanes sum_k = load(hk + v), sum_q = load(hq + v);
            for (int64_t j = 0; j < TOGETHER; ++j) {
                const Lanes s = load(rows + j * value_dim + v);
                sum_k = fma(keys[j], s, sum_k);
                sum_q = fma(queries[j], s, sum_q);
            }
            store(hk + v, sum_k);
            store(hq + v, sum_q);
        }
    }
}

// to = decay * from + k u^T; the two may be one.
inline void update_state(const float* from, float* to, int64_t key_dim, int64_t value_dim, float decay, const float* k,
                         const float* u) {
    const Lanes factor = all(decay);
    for (int64_t i = 0; i < key_dim; i += TOGETHER) {
        Lanes keys[TOGETHER];
        for (int64_t j = 0; j < TOGETHER; ++j) keys[j] = all(k[i + j]);
        for (int64_t v = 0; v < value_dim; v += LANES) {
            const Lanes written = load(u + v);
            for (int64_t j = 0; j < TOGETHER; ++j) {
                const int64_t at = (i + j) * value_dim + v;
                store(to + at, fma(keys[j], written, factor * load(from + at)));
            }
        }
    }
}

// u = beta (v - read)
inline void written_value(const uint16_t* v, float beta, const float* read, int64_t count, float* u) {
    for (int64_t i = 0; i < count; ++i) u[i] = beta * (from_bf16(v[i]) - read[i]);
}

// to = scale * x
inline void scaled(const float* x, float scale, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += LANES) store(to + i, all(scale) * load(x + i));
}

// to += scale * x
inline void add_scaled(const float* x, float scale, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += LANES) store(to + i, fma(all(scale), load(x + i), load(to + i)));
}

inline void write_bf16(const float* from, int64_t count, uint16_t* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
}

// Scratch of `step`, in floats.
inline int64_t step_floats(int64_t key_dim, int64_t value_dim) { return 2 * key_dim + 3 * value_dim; }

inline void step(const DeltaRows& rows, int64_t row, int64_t head, const float* from, float* to, float* space) {
    const int64_t key_dim = rows.key_dim, value_dim = rows.value_dim;
    float *k = space, *q = k + key_dim, *hk = q + key_dim, *hq = hk + value_dim, *u = hq + value_dim;
    key_of(rows, row, head, k);
    query_of(rows, row, head, q);
    const Gates gates = gates_of(rows, row, head);
    const float decay = expf(gates.log_gate);
    read_state(from, key_dim, value_dim, k, q, hk, hq);
    scaled(hk, decay, value_dim, hk);
    written_value(value_of(rows, row, head), gates.beta, hk, value_dim, u);
    scaled(hq, decay, value_dim, hq);
    add_scaled(u, dot(k, q, key_dim), value_dim, hq);
    write_bf16(hq, value_dim, out_of(rows, row, head));
    update_state(from, to, key_dim, value_dim, decay, k, u);
}

}  // namespace ocrquant::OCRQUANT_ISA::delta
