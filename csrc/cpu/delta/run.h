// Several rows of a request over one head's state, a few columns at a time. Include after isa.h.
//
// Columns of a state never meet, so each block of them goes through all rows by itself. A row's update and the next row's reads
// are one pass: what is written is read while it is in a register. Every sum is that of delta/step.h, in its order: 64 rows
// of four heads of 64 x 64 took 104 us in two passes each, and take 77 (Xeon family 6 model 207, 2026-11-30).
#pragma once

#include "delta/step.h"

namespace ocrquant::OCRQUANT_ISA::delta {

// Rows first .. first + count of a head: what they read, computed beforehand, and what they leave.
struct Run {
    const float* state;  // [K, V], behind the row before the first one
    float* to;           // [K, V], where states go; may be `state`
    bool keeps;          // whether the last row's update counts too
    int64_t key_dim, value_dim, count;
    const float* k;  // [count, K], rows apart by k_row
    int64_t k_row;
    const float* q;      // [count, K]
    const float* decay;  // [count], apart by decay_row
    int64_t decay_row;
    const float* beta;  // [count]
    const float* kq;    // [count], k . q
    const uint16_t* v;  // bf16 [count, V], rows apart by v_row
    int64_t v_row;
    float* u;  // [count, V], rows apart by u_row; written
    int64_t u_row;
    float* out;  // [count, V], written
};

// WIDTH registers of columns from `column` on. Row t: from the state before it h = S^T k and o = S^T q; then u and out.
template <int WIDTH>
inline void run_columns(const Run& w, int64_t column) {
    const float* from = w.state + column;
    float* const to = w.to + column;
    for (int64_t t = 0; t < w.count; ++t) {
        const float *const k = w.k + t * w.k_row, *const q = w.q + t * w.key_dim;
        Lanes h[WIDTH], o[WIDTH];
        for (int c = 0; c < WIDTH; ++c) h[c] = o[c] = all(0.f);
        if (t == 0) {
            for (int64_t i = 0; i < w.key_dim; ++i) {
                const Lanes key = all(k[i]), query = all(q[i]);
                for (int c = 0; c < WIDTH; ++c) {
                    const Lanes s = held(load(from + i * w.value_dim + c * LANES));
                    h[c] = fma(key, s, h[c]);
                    o[c] = fma(query, s, o[c]);
                }
            }
        } else {
            const float *const before = k - w.k_row, *const written = w.u + (t - 1) * w.u_row + column;
            const Lanes shrunk = all(w.decay[(t - 1) * w.decay_row]);
            Lanes u[WIDTH];
            for (int c = 0; c < WIDTH; ++c) u[c] = load(written + c * LANES);
            for (int64_t i = 0; i < w.key_dim; ++i) {
                const Lanes last = all(before[i]), key = all(k[i]), query = all(q[i]);
                for (int c = 0; c < WIDTH; ++c) {
                    const int64_t at = i * w.value_dim + c * LANES;
                    const Lanes s = held(fma(last, u[c], shrunk * load(from + at)));
                    store(to + at, s);
                    h[c] = fma(key, s, h[c]);
                    o[c] = fma(query, s, o[c]);
                }
            }
            from = to;
        }
        const Lanes decay = all(w.decay[t * w.decay_row]), beta = all(w.beta[t]), kq = all(w.kq[t]);
        for (int c = 0; c < WIDTH; ++c) {
            float value[LANES];
            const int64_t at = column + c * LANES;
            for (int64_t j = 0; j < LANES; ++j) value[j] = as_float(w.v[t * w.v_row + at + j]);
            const Lanes u = beta * (load(value) - decay * h[c]);
            store(w.u + t * w.u_row + at, u);
            store(w.out + t * w.value_dim + at, fma(kq, u, decay * o[c]));
        }
    }
    if (!w.keeps) return;
    const int64_t last = w.count - 1;
    const float *const k = w.k + last * w.k_row, *const written = w.u + last * w.u_row + column;
    const Lanes shrunk = all(w.decay[last * w.decay_row]);
    for (int64_t i = 0; i < w.key_dim; ++i) {
        for (int c = 0; c < WIDTH; ++c) {
            const int64_t at = i * w.value_dim + c * LANES;
            store(to + at, fma(all(k[i]), load(written + c * LANES), shrunk * load(from + at)));
        }
    }
}

// Registers: two sums, u and a state for each of WIDTH, and four factors; AVX2 has sixteen.
constexpr int COLUMNS = LANES == 16 ? 4 : 2;

inline void run_rows(const Run& w) {
    int64_t column = 0;
    for (; column + COLUMNS * LANES <= w.value_dim; column += COLUMNS * LANES) run_columns<COLUMNS>(w, column);
    for (; column < w.value_dim; column += LANES) run_columns<1>(w, column);
}

}  // namespace ocrquant::OCRQUANT_ISA::delta
