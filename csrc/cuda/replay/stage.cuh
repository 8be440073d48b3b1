// What a block of a ReplaySSM step keeps: in shared memory its rows, records and gates, in registers its part of the checkpoint;
// and how that gets there. window.cuh has the step.
#pragma once

#include "common/numbers.cuh"
#include "replay/ring.cuh"

namespace ocrquant {

constexpr int MOST_ROWS = 16, MOST_RECORDS = 64, TILE = 64, WINDOW_THREADS = 128, PAD = 8;
constexpr int CHUNK = 16;  // records that one product takes
constexpr float LENGTH_EPSILON = 1e-6f;

template <int K>
struct WindowShared {
    uint16_t x[2 * MOST_ROWS][K + PAD];    // keys, then queries
    uint16_t keys[MOST_RECORDS][K + PAD];  // of the records, zeros behind the last
    uint16_t u[MOST_RECORDS][TILE + PAD];
    uint16_t values[MOST_ROWS][TILE];
    union {
        uint16_t scores[2][2 * MOST_ROWS][MOST_RECORDS + PAD];  // two bf16 each
        float read[2 * MOST_ROWS][TILE + 1];                    // keys and queries times S; then u and outputs
    };
    float dots[2 * MOST_ROWS][MOST_ROWS];
    float factor[2 * MOST_ROWS];  // what keys and queries are multiplied by
    float log_gate[MOST_ROWS], since[MOST_ROWS], beta[MOST_ROWS];
    float gates[MOST_RECORDS], behind[MOST_RECORDS];  // log gates of the records, decay behind each
    float past;                                       // decay of the checkpoint
    float weight[MOST_ROWS];                          // of the window's keys in a fold: factor, and decay behind each
};

// Where a block works.
struct Place {
    int request, head, key_head, tile, slot, first, rows, records, base;
};

// Two fp32 as two pairs of bf16, whose sum they are.
struct Split {
    uint32_t high, low;
};

OCRQUANT_DEVICE Split split(float a, float b) {
    const uint32_t high = pair_bf16(a, b);
    return {high, pair_bf16(a - low_half(high), b - high_half(high))};
}

OCRQUANT_DEVICE uint32_t pair_at(const uint16_t* at) { return *reinterpret_cast<const uint32_t*>(at); }
OCRQUANT_DEVICE uint32_t pair_of(uint16_t low, uint16_t high) { return uint32_t(low) | uint32_t(high) << 16; }

// Fragment a of sixteen rows of a matrix from `row` on, sixteen columns from `column` on.
template <int WIDTH>
OCRQUANT_DEVICE void load_a(const uint16_t (*rows)[WIDTH], int row, int column, uint32_t (&a)[4]) {
    const int lane = threadIdx.x % 32, r = row + lane / 4, c = column + lane % 4 * 2;
    a[0] = pair_at(&rows[r][c]);
    a[1] = pair_at(&rows[r + 8][c]);
    a[2] = pair_at(&rows[r][c + 8]);
    a[3] = pair_at(&rows[r + 8][c + 8]);
}

// The state of one thread: of its warp's K / 2 rows and 32 columns, rows 2q, 2q + 1, 2q + 8 and 2q + 9 of every sixteen, q its
// place in its group of four, and four columns next to each other. A row by a warp is 128 bytes.
template <int K>
struct StatePart {
    static constexpr int STEPS = K / 32;
    float at[STEPS][4][4];

    OCRQUANT_DEVICE static int depth() { return int(threadIdx.x) / 64 * (K / 2); }
    OCRQUANT_DEVICE static int column() { return int(threadIdx.x) / 32 % 2 * 32 + int(threadIdx.x) % 32 / 4 * 4; }
    OCRQUANT_DEVICE static int row(int step, int r) {
        return depth() + 16 * step + int(threadIdx.x) % 4 * 2 + r % 2 + r / 2 * 8;
    }

    OCRQUANT_DEVICE void load(const float* state, int64_t width) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float4 x = load_state(state + row(step, r) * width + column());
                at[step][r][0] = x.x;
                at[step][r][1] = x.y;
                at[step][r][2] = x.z;
                at[step][r][3] = x.w;
            }
        }
    }

    OCRQUANT_DEVICE void store(float* state, int64_t width) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float(&x)[4] = at[step][r];
                *reinterpret_cast<float4*>(state + row(step, r) * width + column()) = float4{x[0], x[1], x[2], x[3]};
            }
        }
    }

    OCRQUANT_DEVICE void scale(float factor) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int i = 0; i < 16; ++i) at[step][i / 4][i % 4] *= factor;
        }
    }
};

OCRQUANT_DEVICE uint4 load16(const uint16_t* from) { return *reinterpret_cast<const uint4*>(from); }
OCRQUANT_DEVICE void store16(uint16_t* to, uint4 x) { *reinterpret_cast<uint4*>(to) = x; }

OCRQUANT_DEVICE float squares(uint32_t pair, float sum) {
    return fmaf(high_half(pair), high_half(pair), fmaf(low_half(pair), low_half(pair), sum));
}

// Keys, queries and their lengths; rows beyond the request's are zeros.
template <int K>
OCRQUANT_DEVICE void stage_rows(const ReplayWindow& w, const Place& p, WindowShared<K>& s) {
    constexpr int LANES = K / 8, TOGETHER = WINDOW_THREADS / LANES;
    const int at = int(threadIdx.x) % LANES * 8;
    for (int r = int(threadIdx.x) / LANES; r < 2 * MOST_ROWS; r += TOGETHER) {
        const int row = r % MOST_ROWS, side = r < MOST_ROWS ? w.key_heads : 0;
        uint4 x{0, 0, 0, 0};
        if (row < p.rows) x = load16(w.mixed + (p.first + row) * w.mixed_stride + (side + p.key_head) * K + at);
        store16(&s.x[r][at], x);
        float sum = squares(x.w, squares(x.z, squares(x.y, squares(x.x, 0.0f))));
        for (int lanes = 1; lanes < LANES; lanes *= 2) sum += shuffle_xor(sum, lanes);
        const float scale = r < MOST_ROWS ? 1.0f : 1.0f / sqrtf(float(K));
        if (at == 0) s.factor[r] = scale / sqrtf(sum + LENGTH_EPSILON);
    }
    const int row = int(threadIdx.x) / 8, column = int(threadIdx.x) % 8 * 8;
    const int64_t from = 2 * int64_t(w.key_heads) * K + int64_t(p.head) * w.value_dim + p.tile * TILE + column;
    store16(&s.values[row][column], row < p.rows ? load16(w.mixed + (p.first + row) * w.mixed_stride + from) : uint4{0, 0, 0, 0});
}

// Log gate and beta of each row, neutral beyond the request's.
template <int K>
OCRQUANT_DEVICE void stage_gates(const ReplayWindow& w, const Place& p, WindowShared<K>& s) {
    const int row = threadIdx.x;
    if (row >= MOST_ROWS) return;
    s.log_gate[row] = s.beta[row] = 0.0f;
    if (row >= p.rows) return;
    const float step = low_half(w.a[(p.first + row) * w.a_stride + p.head]) + w.dt_bias[p.head];
    const float softplus = step > 20.0f ? step : log1pf(expf(step));
    s.log_gate[row] = -expf(w.a_log[p.head]) * softplus;
    // Rounded to the dtype of activations, as the model that was trained rounds it.
    s.beta[row] = rounded_bf16(1.0f / (1.0f + expf(-low_half(w.b[(p.first + row) * w.b_stride + p.head]))));
}

template <int K>
OCRQUANT_DEVICE void stage_records(const ReplayWindow& w, const Place& p, WindowShared<K>& s) {
    const int64_t head = int64_t(p.slot) * w.heads + p.head, key_head = int64_t(p.slot) * w.key_heads + p.key_head;
    const int padded = (p.records + CHUNK - 1) / CHUNK * CHUNK;
    for (int i = threadIdx.x; i < MOST_RECORDS; i += WINDOW_THREADS)
        s.gates[i] = i < p.records ? w.log_gate[head * w.size + ring_place(p.base, i, w.size)] : 0.0f;
    for (int i = threadIdx.x; i < padded * (K / 8); i += WINDOW_THREADS) {
        const int j = i / (K / 8), at = i % (K / 8) * 8;
        const uint16_t* const from = w.k + (key_head * w.size + ring_place(p.base, j, w.size)) * K + at;
        store16(&s.keys[j][at], j < p.records ? load16(from) : uint4{0, 0, 0, 0});
    }
    for (int i = threadIdx.x; i < padded * (TILE / 8); i += WINDOW_THREADS) {
        const int j = i / (TILE / 8), at = i % (TILE / 8) * 8;
        const int64_t record = head * w.size + ring_place(p.base, j, w.size);
        const uint16_t* const from = w.u + record * w.value_dim + p.tile * TILE + at;
        store16(&s.u[j][at], j < p.records ? load16(from) : uint4{0, 0, 0, 0});
    }
}

// Sums of log gates, in the order in which the reference's compiled kernel adds them, and their exponentials.
template <int K>
OCRQUANT_DEVICE void sum_gates(const Place& p, WindowShared<K>& s) {
    const int thread = threadIdx.x;
    float sum = 0.0f;
    if (thread < MOST_RECORDS) {
        for (int j = p.records - 1; j > thread; --j) sum += s.gates[j];
        s.behind[thread] = expf(sum);
        if (thread == 0) s.past = expf(p.records > 0 ? sum + s.gates[0] : 0.0f);
    } else if (thread < MOST_RECORDS + MOST_ROWS) {
        for (int i = 0; i <= thread - MOST_RECORDS; ++i) sum += s.log_gate[i];
        s.since[thread - MOST_RECORDS] = sum;
    } else if (thread < MOST_RECORDS + 2 * MOST_ROWS) {
        const int row = thread - MOST_RECORDS - MOST_ROWS;
        for (int i = MOST_ROWS - 1; i > row; --i) sum += s.log_gate[i];
        s.weight[row] = expf(sum) * s.factor[row];
    }
}

}  // namespace ocrquant
