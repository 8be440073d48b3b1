// What the gated delta rule reads of one row and head. Include after isa.h.
#pragma once

#include <math.h>

#include "common/numbers.h"
#include "common/pool.h"
#include "delta/args.h"
#include "delta/lanes.h"

namespace ocrquant::OCRQUANT_ISA::delta {

constexpr float EPSILON = 1e-6f;

struct Gates {
    float log_gate, beta;
};

inline Gates gates_of(const DeltaRows& rows, int64_t row, int64_t head) {
    const float step = from_bf16(rows.a[row * rows.a_stride + head]) + rows.dt_bias[head];
    const float softplus = step > 20.f ? step : log1pf(expf(step));
    const float b = from_bf16(rows.b[row * rows.b_stride + head]);
    // beta is rounded to the dtype of activations, as the model that was trained rounds it.
    return {-expf(rows.a_log[head]) * softplus, from_bf16(to_bf16(1.f / (1.f + expf(-b))))};
}

inline float as_float(uint16_t bits) { return from_bf16(bits); }
inline float as_float(float x) { return x; }

// Elements are bf16 or fp32.
template <class Element>
inline void normalise(const Element* from, int64_t count, float scale, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = as_float(from[i]);
    const float factor = scale / sqrtf(dot(to, to, count) + EPSILON);
    for (int64_t i = 0; i < count; ++i) to[i] *= factor;
}

inline int64_t key_head(const DeltaRows& rows, int64_t head) { return head / (rows.heads / rows.key_heads); }

inline void key_of(const DeltaRows& rows, int64_t row, int64_t head, float* k) {
    const int64_t at = (rows.key_heads + key_head(rows, head)) * rows.key_dim;
    normalise(rows.mixed + row * rows.mixed_stride + at, rows.key_dim, 1.f, k);
}

inline void query_of(const DeltaRows& rows, int64_t row, int64_t head, float* q) {
    const int64_t at = key_head(rows, head) * rows.key_dim;
    normalise(rows.mixed + row * rows.mixed_stride + at, rows.key_dim, 1.f / sqrtf(float(rows.key_dim)), q);
}

inline const uint16_t* value_of(const DeltaRows& rows, int64_t row, int64_t head) {
    return rows.mixed + row * rows.mixed_stride + 2 * rows.key_heads * rows.key_dim + head * rows.value_dim;
}

inline uint16_t* out_of(const DeltaRows& rows, int64_t row, int64_t head) {
    return rows.out + (row * rows.heads + head) * rows.value_dim;
}

// Rows of a request whose slot is padding.
inline void zero_rows(const DeltaRows& rows, int64_t first, int64_t count, int64_t head) {
    for (int64_t row = first; row < first + count; ++row) {
        memset(out_of(rows, row, head), 0, size_t(rows.value_dim) * sizeof(uint16_t));
    }
}

// Passes over a state by one token, counted in its elements, below which waking threads costs more than the work: about 40 us
// on one core.
constexpr int64_t SERIAL_STATE_ELEMENTS = 200000;

inline bool is_small(const DeltaRows& rows) {
    const int64_t count = rows.q_start[rows.requests] - rows.q_start[0];
    return count * rows.heads * rows.key_dim * rows.value_dim < SERIAL_STATE_ELEMENTS;
}

// body(request, head) for every request with rows; padding is written by the caller of `body`.
template <class Body>
void for_heads(const DeltaRows& rows, Body&& body) {
    parallel_for(rows.requests * rows.heads, is_small(rows), [&](int64_t task) {
        const int64_t request = task / rows.heads, head = task % rows.heads;
        const int64_t first = rows.q_start[request], count = rows.q_start[request + 1] - first;
        if (count <= 0) return;
        if (rows.slots[request] < 0) return zero_rows(rows, first, count, head);
        body(request, head, first, count);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA::delta
