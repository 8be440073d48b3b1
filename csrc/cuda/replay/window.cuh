// A step of the gated delta rule behind a checkpoint and its records, on tensor cores. ocrquant/kernels/replay/reference.py has
// the formulas, and the names.
//
// A block takes 64 value columns of one head of one request. It asks for its part of the checkpoint first, K / 2 rows by 32
// columns a warp, kept in registers; while that comes, it stages keys, queries and records and computes everything that does
// not need it:
//
//   scores [2T, P]  keys and queries times the records' keys, times the decay behind each record
//   dots   [2T, T]  keys and queries times the window's keys, times factors and decays: the system and the mix of outputs
//   read   [2T, 64] scores U + X (e^G S0)
//   u, o   by substitution over the T rows, a column a thread
//
// Products take bf16. Keys and queries enter as they come, which is exact, and their lengths divide the sums afterwards. fp32
// operands enter as two bf16, 2^-17 of relative error; records of u are rounded at 2^-9. A ring's bf16 records are exact.
#pragma once

#include "replay/stage.cuh"

namespace ocrquant {

// Keys and queries times sixteen keys from `row` of `keys` on: [2T, 16] as fragments [half][eight columns].
template <int K>
OCRQUANT_DEVICE void times_keys(const WindowShared<K>& s, const uint16_t (*keys)[K + PAD], int row, float (&sums)[2][2][4]) {
    const int lane = threadIdx.x % 32;
    for (int half = 0; half < 2; ++half) {
        for (int n = 0; n < 2; ++n) {
            for (int i = 0; i < 4; ++i) sums[half][n][i] = 0.0f;
        }
    }
#pragma unroll 2
    for (int k = 0; k < K; k += 16) {
        uint32_t a[2][4];
        load_a(s.x, 0, k, a[0]);
        load_a(s.x, MOST_ROWS, k, a[1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const uint16_t* const key = &keys[row + n * 8 + lane / 4][k + lane % 4 * 2];
            const uint32_t b[2] = {pair_at(key), pair_at(key + 8)};
            mma_bf16(sums[0][n], a[0], b);
            mma_bf16(sums[1][n], a[1], b);
        }
    }
}

// Weight of the window's value j in row `row` of `read`: keys below MOST_ROWS take those before them, queries their own too.
template <int K>
OCRQUANT_DEVICE float mixed_weight(const WindowShared<K>& s, float dot, int row, int j) {
    const bool is_query = row >= MOST_ROWS;
    const int own = row % MOST_ROWS;
    if (j > own || (j == own && !is_query)) return 0.0f;
    const float decay = j == own ? 1.0f : expf(s.since[own] - s.since[j]);
    return decay * (dot * s.factor[row] * s.factor[j]);
}

template <int K>
OCRQUANT_DEVICE void score(const Place& p, WindowShared<K>& s) {
    const int lane = threadIdx.x % 32, warp = int(threadIdx.x) / 32, chunks = (p.records + CHUNK - 1) / CHUNK;
    for (int chunk = warp; chunk <= chunks; chunk += WINDOW_THREADS / 32) {
        const bool is_window = chunk == chunks;
        float sums[2][2][4];
        times_keys<K>(s, is_window ? s.x : s.keys, is_window ? 0 : chunk * CHUNK, sums);
        for (int half = 0; half < 2; ++half) {
            for (int n = 0; n < 2; ++n) {
                for (int i = 0; i < 4; i += 2) {
                    const int row = half * MOST_ROWS + lane / 4 + i * 4, column = n * 8 + lane % 4 * 2;
                    const float a = sums[half][n][i], b = sums[half][n][i + 1];
                    if (is_window) {
                        s.dots[row][column] = mixed_weight<K>(s, a, row, column);
                        s.dots[row][column + 1] = mixed_weight<K>(s, b, row, column + 1);
                        continue;
                    }
                    const int at = chunk * CHUNK + column;
                    const Split both = split(a * s.behind[at], b * s.behind[at + 1]);
                    *reinterpret_cast<uint32_t*>(&s.scores[0][row][at]) = both.high;
                    *reinterpret_cast<uint32_t*>(&s.scores[1][row][at]) = both.low;
                }
            }
        }
    }
}

// read += scores U, over the chunks of records that are this half of the block's.
template <int K>
OCRQUANT_DEVICE void read_records(const Place& p, const WindowShared<K>& s, float (&read)[2][4][4]) {
    const int lane = threadIdx.x % 32, column = StatePart<K>::column();
    for (int chunk = int(threadIdx.x) / 64; chunk * CHUNK < p.records; chunk += 2) {
        uint32_t a[2][2][4];
        for (int piece = 0; piece < 2; ++piece) {
            load_a(s.scores[piece], 0, chunk * CHUNK, a[piece][0]);
            load_a(s.scores[piece], MOST_ROWS, chunk * CHUNK, a[piece][1]);
        }
        const uint16_t(*const u)[TILE + PAD] = &s.u[chunk * CHUNK + lane % 4 * 2];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int v = column + j;
            const uint32_t b[2] = {pair_of(u[0][v], u[1][v]), pair_of(u[8][v], u[9][v])};
            for (int piece = 0; piece < 2; ++piece) {
                mma_bf16(read[0][j], a[piece][0], b);
                mma_bf16(read[1][j], a[piece][1], b);
            }
        }
    }
}

// read += X S over this warp's rows of the state.
template <int K>
OCRQUANT_DEVICE void read_state(const WindowShared<K>& s, const StatePart<K>& state, float (&read)[2][4][4]) {
#pragma unroll
    for (int step = 0; step < StatePart<K>::STEPS; ++step) {
        uint32_t a[2][4];
        load_a(s.x, 0, StatePart<K>::depth() + 16 * step, a[0]);
        load_a(s.x, MOST_ROWS, StatePart<K>::depth() + 16 * step, a[1]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const Split upper = split(state.at[step][0][j], state.at[step][1][j]);
            const Split lower = split(state.at[step][2][j], state.at[step][3][j]);
            const uint32_t high[2] = {upper.high, lower.high}, low[2] = {upper.low, lower.low};
            mma_bf16(read[0][j], a[0], high);
            mma_bf16(read[1][j], a[1], high);
            mma_bf16(read[0][j], a[0], low);
            mma_bf16(read[1][j], a[1], low);
        }
    }
}

// The two halves' sums, together in shared memory.
template <int K>
OCRQUANT_DEVICE void gather_read(WindowShared<K>& s, const float (&read)[2][4][4]) {
    const int lane = threadIdx.x % 32, left = int(threadIdx.x) / 32 % 2 * 32;
    for (int turn = 1; turn >= 0; --turn) {
        barrier();
        if (int(threadIdx.x) / 64 != turn) continue;
        for (int half = 0; half < 2; ++half) {
            for (int j = 0; j < 4; ++j) {
                for (int i = 0; i < 4; ++i) {
                    const int row = half * MOST_ROWS + lane / 4 + i / 2 * 8, column = left + 4 * (lane % 4 * 2 + i % 2) + j;
                    s.read[row][column] = turn == 1 ? read[half][j][i] : s.read[row][column] + read[half][j][i];
                }
            }
        }
    }
    barrier();
}

// A thread's column: written values u and outputs take the places of what was read.
template <int K>
OCRQUANT_DEVICE void substitute(WindowShared<K>& s, int column) {
    float u[MOST_ROWS];
#pragma unroll
    for (int row = 0; row < MOST_ROWS; ++row) {
        const float since = expf(s.since[row]);
        float read = since * (s.factor[row] * s.read[row][column]);
#pragma unroll
        for (int j = 0; j < row; ++j) read = fmaf(s.dots[row][j], u[j], read);
        u[row] = s.beta[row] * (low_half(s.values[row][column]) - read);
        float value = since * (s.factor[MOST_ROWS + row] * s.read[MOST_ROWS + row][column]);
#pragma unroll
        for (int j = 0; j <= row; ++j) value = fmaf(s.dots[MOST_ROWS + row][j], u[j], value);
        s.read[row][column] = u[row];
        s.read[MOST_ROWS + row][column] = value;
    }
}

// Outputs, and u into the ring, two columns a thread.
template <int K>
OCRQUANT_DEVICE void write_values(const ReplayWindow& w, const Place& p, const WindowShared<K>& s) {
    const int64_t head = int64_t(p.slot) * w.heads + p.head;
#pragma unroll 1
    for (int i = threadIdx.x; i < p.rows * (TILE / 2); i += WINDOW_THREADS) {
        const int row = i / (TILE / 2), column = i % (TILE / 2) * 2, at = p.tile * TILE + column;
        const int64_t out = int64_t(p.first + row) * w.heads + p.head;
        const int64_t record = head * w.size + ring_place(p.base, p.records + row, w.size);
        const float *const u = &s.read[row][column], *const value = &s.read[MOST_ROWS + row][column];
        *reinterpret_cast<uint32_t*>(w.out + out * w.value_dim + at) = pair_bf16(value[0], value[1]);
        *reinterpret_cast<uint32_t*>(w.u + record * w.value_dim + at) = pair_bf16(u[0], u[1]);
    }
}

// The window's keys and log gates into the ring; the value heads of a key head share its keys, and the first of them writes.
template <int K>
OCRQUANT_DEVICE void write_records(const ReplayWindow& w, const Place& p, const WindowShared<K>& s, int thread, int threads) {
    if (p.tile != 0) return;
    const int64_t head = int64_t(p.slot) * w.heads + p.head, key_head = int64_t(p.slot) * w.key_heads + p.key_head;
    for (int row = thread; row < p.rows; row += threads)
        w.log_gate[head * w.size + ring_place(p.base, p.records + row, w.size)] = s.log_gate[row];
    if (p.head % (w.heads / w.key_heads) != 0) return;
#pragma unroll 1
    for (int i = thread; i < p.rows * (K / 2); i += threads) {
        const int row = i / (K / 2), at = i % (K / 2) * 2;
        const uint32_t x = pair_at(&s.x[row][at]);
        const int64_t record = key_head * w.size + ring_place(p.base, p.records + row, w.size);
        *reinterpret_cast<uint32_t*>(w.k + record * K + at) =
            pair_bf16(low_half(x) * s.factor[row], high_half(x) * s.factor[row]);
    }
}

}  // namespace ocrquant
