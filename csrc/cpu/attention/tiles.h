// The arithmetic of attention on tiles of up to six rows: scores of a block, softmax weights, weighted sums of values.
//
// What a row gets does not depend on the tile that it is in: scores are summed over the head's columns in order, outputs over
// keys in order, each in a lane of its own.
#pragma once

#include "attention/stage.h"

namespace ocrquant::OCRQUANT_ISA::attention {

// Six rows by sixteen lanes take twelve of AVX2's sixteen registers and leave room for operands; AVX-512 has twice as many
// and needs two panels for its latency.
constexpr int64_t TILE = 6;
#if defined(OCRQUANT_WITH_AVX512)
constexpr int WIDTH = 2;
#else
constexpr int WIDTH = 1;
#endif

template <int N>
struct Count {
    static constexpr int value = N;
};

// Calls f with the number of rows, 1 to 6, as a constant.
template <class Function>
inline void with_rows(int64_t rows, Function f) {
    switch (rows) {
        case 1: return f(Count<1>());
        case 2: return f(Count<2>());
        case 3: return f(Count<3>());
        case 4: return f(Count<4>());
        case 5: return f(Count<5>());
        default: return f(Count<6>());
    }
}

// scores[r][16 * c ..] = q[r] . keys of panel c
struct Scores {
    const float* q;
    const float* keys;
    float* scores;
    int64_t dim;

    template <int ROWS, int COLS>
    void run() const {
        Lanes sum[ROWS][COLS];
        for (int r = 0; r < ROWS; ++r) {
            for (int c = 0; c < COLS; ++c) sum[r][c] = all(0.f);
        }
        for (int64_t d = 0; d < dim; ++d) {
            Lanes key[COLS];
            for (int c = 0; c < COLS; ++c) key[c] = load(keys + (c * dim + d) * LANES);
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; ++r) {
                const Lanes x = all(q[r * dim + d]);
                for (int c = 0; c < COLS; ++c) sum[r][c] = fma(x, key[c], sum[r][c]);
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            for (int c = 0; c < COLS; ++c) store(scores + r * BLOCK + c * LANES, sum[r][c]);
        }
    }
};

// out[r][16 * c ..] = out[r][16 * c ..] * decay[r] + sum over keys of weights[r][key] * values of panel c
template <class T>
struct Sums {
    const float* weights;
    const float* decay;
    const T* values;
    float* out;
    int64_t keys;
    int64_t stride;

    template <int ROWS, int COLS>
    void run() const {
        Lanes sum[ROWS][COLS];
        for (int r = 0; r < ROWS; ++r) {
            for (int c = 0; c < COLS; ++c) sum[r][c] = mul(load(out + r * stride + c * LANES), all(decay[r]));
        }
        for (int64_t k = 0; k < keys; ++k) {
            Lanes value[COLS];
            for (int c = 0; c < COLS; ++c) value[c] = widen16(values + c * VALUE_PANEL + k * LANES);
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; ++r) {
                const Lanes x = all(weights[r * BLOCK + k]);
                for (int c = 0; c < COLS; ++c) sum[r][c] = fma(x, value[c], sum[r][c]);
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            for (int c = 0; c < COLS; ++c) store(out + r * stride + c * LANES, sum[r][c]);
        }
    }
};

template <class Tile>
inline void run_tile(const Tile& tile, int64_t rows, int64_t panels) {
    with_rows(rows, [&](auto count) {
        if (panels == WIDTH) {
            tile.template run<decltype(count)::value, WIDTH>();
        } else {
            tile.template run<decltype(count)::value, 1>();
        }
    });
}

// Sixteen scores, -inf from place `seen` on; their largest one, where a NaN may or may not be passed over; the first of lanes.
// By way of memory each waits for stores: 4 rows over 600 keys took 30 us, and take 27 with AVX-512's own (Xeon family 6
// model 207, 2026-11-30).
#if defined(OCRQUANT_WITH_AVX512)
inline Lanes seen_scores(const float* scores, int64_t seen) {
    const __mmask16 kept = seen >= LANES ? 0xffff : seen <= 0 ? 0 : __mmask16((1u << seen) - 1);
    return {_mm512_mask_loadu_ps(all(-__builtin_inff()).v, kept, scores)};
}
inline float top_of(Lanes x) { return _mm512_reduce_max_ps(x.v); }
inline float first_of(Lanes x) { return _mm512_cvtss_f32(x.v); }
#else
inline Lanes seen_scores(float* scores, int64_t seen) {
    for (int64_t k = seen < 0 ? 0 : seen; k < LANES; ++k) scores[k] = -__builtin_inff();
    return load(scores);
}
inline float top_of(Lanes x) { return largest(x); }
inline float first_of(Lanes x) {
    float lanes[LANES];
    store(lanes, x);
    return lanes[0];
}
#endif

// Scores of one row become weights 2^(score - largest so far); keys from `seen` on weigh nothing. Takes the largest score
// and the sum of weights (one part a lane) along, and returns by what earlier weights shrink.
inline float weigh(float* scores, int64_t seen, float* largest_score, float* total) {
    constexpr float NOTHING = -__builtin_inff();
    Lanes s[PANELS];
    for (int64_t c = 0; c < PANELS; ++c) s[c] = seen_scores(scores + c * LANES, seen - c * LANES);
    Lanes top = s[0];
    for (int64_t c = 1; c < PANELS; ++c) top = larger(s[c], top);
    const float before = *largest_score, here = top_of(top);
    const float after = here > before ? here : before;
    *largest_score = after;
    // Where every score is -inf so far, -inf - -inf must not make a NaN of weights that are zero.
    const float base = after == NOTHING ? 0.f : after;
    Lanes sums = all(0.f);
    for (int64_t c = 0; c < PANELS; ++c) {
        s[c] = exp2(sub(s[c], all(base)));
        store(scores + c * LANES, s[c]);
        sums = c == 0 ? s[0] : add(sums, s[c]);
    }
    const Lanes decay = exp2(all(before - base));
    store(total, fma(load(total), decay, sums));
    return first_of(decay);
}

}  // namespace ocrquant::OCRQUANT_ISA::attention
