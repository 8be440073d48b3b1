// The checkpoint brought up to date behind a step: S <- e^G S0 + sum over j of (decay behind j) k_j u_j^T.
//
// What a thread holds of the checkpoint for `read_state` is what a product holds of its transpose [columns, rows]: the sums go
// straight into those registers. u times its decay enters as two bf16, keys as they are.
#pragma once

#include "replay/window.cuh"

namespace ocrquant {

// state += K^T W over sixteen records: keys [16, K] from `keys`, weighted values given by `value(record, column)`.
template <int K, class Value>
OCRQUANT_DEVICE void fold_chunk(StatePart<K>& state, const uint16_t (*keys)[K + PAD], Value value) {
    const int lane = threadIdx.x % 32, record = lane % 4 * 2, column = StatePart<K>::column();
    uint32_t a[2][2][4];  // [pair of columns][piece]
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = record + i / 2 * 8, c = column + 2 * pair + i % 2;
            const Split both = split(value(r, c), value(r + 1, c));
            a[pair][0][i] = both.high;
            a[pair][1][i] = both.low;
        }
    }
#pragma unroll
    for (int step = 0; step < StatePart<K>::STEPS; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int k = StatePart<K>::depth() + 16 * step + 8 * half + lane / 4;
            const uint32_t b[2] = {pair_of(keys[record][k], keys[record + 1][k]), pair_of(keys[record + 8][k], keys[record + 9][k])};
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                float(&upper)[4] = state.at[step][2 * half], (&lower)[4] = state.at[step][2 * half + 1];
                float c[4] = {upper[2 * pair], lower[2 * pair], upper[2 * pair + 1], lower[2 * pair + 1]};
                mma_bf16(c, a[pair][0], b);
                mma_bf16(c, a[pair][1], b);
                upper[2 * pair] = c[0];
                lower[2 * pair] = c[1];
                upper[2 * pair + 1] = c[2];
                lower[2 * pair + 1] = c[3];
            }
        }
    }
}

// `state` holds e^G S0. Where the step's rows count already they are folded too, unrounded.
template <int K>
OCRQUANT_DEVICE void fold(const ReplayWindow& w, const Place& p, const WindowShared<K>& s, StatePart<K>& state) {
    const float window = w.accepted ? expf(s.since[MOST_ROWS - 1]) : 1.0f;
    if (w.accepted) state.scale(window);
#pragma unroll 1
    for (int first = 0; first < p.records; first += CHUNK) {
        fold_chunk<K>(state, s.keys + first, [&](int record, int column) {
            return window * s.behind[first + record] * low_half(s.u[first + record][column]);
        });
    }
    if (!w.accepted) return;
    fold_chunk<K>(state, s.x, [&](int row, int column) { return s.weight[row] * s.read[row][column]; });
}

}  // namespace ocrquant
