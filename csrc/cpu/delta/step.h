// One token of the gated delta rule on one head's state [K, V]. Include after isa.h.
//
//   u = beta (v - e^g S^T k)      o = e^g S^T q + (k . q) u      S <- e^g S + k u^T
//
// Both products are taken of the old state, so that it comes from memory once; the update finds it in a cache. Every sum
// runs over K in order, one fused step after the other: `accumulate` in products.h gives the same bits.
#pragma once

#include "common/vec.h"
#include "delta/terms.h"

namespace ocrquant::OCRQUANT_ISA::delta {

// Rows of the state that are worked on together, so that what all of them need stays in registers for longer.
constexpr int64_t TOGETHER = 4;

// h[n] = S^T x[n], [V] each, for N vectors at once.
template <int N>
inline void read_state(const float* state, int64_t key_dim, int64_t value_dim, const float* const (&x)[N],
                       float* const (&h)[N]) {
    for (int n = 0; n < N; ++n) memset(h[n], 0, size_t(value_dim) * sizeof(float));
    for (int64_t i = 0; i < key_dim; i += TOGETHER) {
        const float* rows = state + i * value_dim;
        // Held here: as far as the compiler can see, a store to h could change x.
        Lanes factors[N][TOGETHER];
        for (int n = 0; n < N; ++n) {
            for (int64_t j = 0; j < TOGETHER; ++j) factors[n][j] = all(x[n][i + j]);
        }
        for (int64_t v = 0; v < value_dim; v += LANES) {
            Lanes sums[N];
            for (int n = 0; n < N; ++n) sums[n] = load(h[n] + v);
            for (int64_t j = 0; j < TOGETHER; ++j) {
                const Lanes s = held(load(rows + j * value_dim + v));
                for (int n = 0; n < N; ++n) sums[n] = fma(factors[n][j], s, sums[n]);
            }
            for (int n = 0; n < N; ++n) store(h[n] + v, sums[n]);
        }
    }
}

// to = decay * from + k u^T; the two may be one.
inline void update_state(const float* from, float* to, int64_t key_dim, int64_t value_dim, float decay, const float* k,
                         const float* u) {
    const Lanes factor = all(decay);
    for (int64_t i = 0; i < key_dim; i += TOGETHER) {
        const Lanes keys[TOGETHER] = {all(k[i]), all(k[i + 1]), all(k[i + 2]), all(k[i + 3])};
        for (int64_t v = 0; v < value_dim; v += LANES) {
            const Lanes written = load(u + v);
            for (int64_t j = 0; j < TOGETHER; ++j) {
                const int64_t at = (i + j) * value_dim + v;
                store(to + at, fma(keys[j], written, factor * load(from + at)));
            }
        }
    }
}

// u = beta (v - read); v is bf16 or fp32.
template <class Value>
inline void written_value(const Value* v, float beta, const float* read, int64_t count, float* u) {
    for (int64_t i = 0; i < count; ++i) u[i] = beta * (as_float(v[i]) - read[i]);
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
    narrow_row(from, count, to);
}

// One token with its terms at hand: k, q [K], v [V]. Leaves the output in `out` and u in `u`, and uses hk, [V] each.
template <class Value>
inline void advance(const float* from, float* to, int64_t key_dim, int64_t value_dim, float decay, float beta,
                    const float* k, const float* q, const Value* v, float* hk, float* out, float* u) {
    read_state<2>(from, key_dim, value_dim, {k, q}, {hk, out});
    scaled(hk, decay, value_dim, hk);
    written_value(v, beta, hk, value_dim, u);
    scaled(out, decay, value_dim, out);
    add_scaled(u, dot(k, q, key_dim), value_dim, out);
    update_state(from, to, key_dim, value_dim, decay, k, u);
}

// Everything that a row reads but its value: k, q [K], and one number each.
inline void terms_of(const DeltaRows& rows, int64_t row, int64_t head, float* k, float* q, float* decay, float* beta, float* kq) {
    key_of(rows, row, head, k);
    query_of(rows, row, head, q);
    const Gates gates = gates_of(rows, row, head);
    *decay = expf(gates.log_gate);
    *beta = gates.beta;
    *kq = dot(k, q, rows.key_dim);
}

// Scratch of `step`, in floats.
inline int64_t step_floats(int64_t key_dim, int64_t value_dim) { return 2 * key_dim + 3 * value_dim; }

inline void step(const DeltaRows& rows, int64_t row, int64_t head, const float* from, float* to, float* space) {
    const int64_t key_dim = rows.key_dim, value_dim = rows.value_dim;
    float *k = space, *q = k + key_dim, *hk = q + key_dim, *out = hk + value_dim, *u = out + value_dim;
    key_of(rows, row, head, k);
    query_of(rows, row, head, q);
    const Gates gates = gates_of(rows, row, head);
    const uint16_t* const v = value_of(rows, row, head);
    advance(from, to, key_dim, value_dim, expf(gates.log_gate), gates.beta, k, q, v, hk, out, u);
    write_bf16(out, value_dim, out_of(rows, row, head));
}

}  // namespace ocrquant::OCRQUANT_ISA::delta
