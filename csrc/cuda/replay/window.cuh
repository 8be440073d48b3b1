// A step of the gated delta rule behind a checkpoint and its records, on tensor cores. ocrquant/kernels/replay/reference.py has
// the formulas, and the names.
//
// A block takes 64 value columns of one head of one request. It asks for its part of the checkpoint first, 64 rows by 32 columns
// a warp, kept in registers; while that comes, it stages keys, queries and records and computes everything that does not need
// it:
//
//   scores [2T, P]  keys and queries times the records' keys, times the decay behind each record
//   dots   [2T, T]  keys and queries times the window's keys, times factors and decays: the system and the mix of outputs
//   read   [2T, 64] scores U + X (e^G S0)
//   u, o   by substitution over the T rows, a column a thread
//
// Products take bf16. Keys and queries enter as they come, which is exact, and their lengths divide the sums afterwards. fp32
// operands enter as two bf16, 2^-17 of relative error; records of u are rounded at 2^-9. A ring's bf16 records are exact.
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
