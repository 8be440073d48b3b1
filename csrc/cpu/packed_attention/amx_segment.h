// Rows of a segment against all its keys in the tiles of AMX, for heads of whole tiles.
//
//   scores   bf16 queries, where they lie, times bf16 keys: exact products summed in fp32
//   weights  2^(scale score - largest) to within 2^-15, each as the sum of two bf16 numbers
//   outputs  weights times bf16 values, summed in the tiles over a whole span of keys
//
// Rows of an image see all keys, unlike those over a cache, so the softmax of a span needs no running along: scores of 16 rows
// against 512 keys stay in the first-level cache. What a row gets depends on the row and its segment alone. Where values are
// not finite, outputs of their columns are NaN.
#pragma once

#include "attention/spans.h"
#include "common/bf16_lines.h"

namespace ocrquant::OCRQUANT_ISA::attention {

struct SegmentRows {
    const uint16_t *q, *k, *v;  // of the segment and the head
    int64_t q_row, k_row, v_row;
    int64_t length;        // of the segment
    int64_t first, count;  // of these rows
    int64_t dim;
    float scale;  // of scores, for powers of two; not negative
    uint16_t* out;
    int64_t out_row;
};

constexpr int64_t GROUP = TILE_COLUMNS;  // keys that one product of weights and values takes
// Bytes of 16 columns of values of a span; a line more, or the panels would fall on the same sets of a cache.
constexpr int64_t SPAN_VALUES = SPAN / 2 * PAIR + LINE;
// Floats of the scores that are worked on at once: of 16 rows against a whole span, of more rows against less.
constexpr int64_t SCORES = TILE_ROWS * (SPAN + LANES);

// Floats from a row of scores against `count` keys to the next one; not a power of two, for the same reason.
inline int64_t scores_row(int64_t count) { return rounded_up(count, 2 * GROUP) + LANES; }

// Memory of one task. Rows go through it in tiles of one height; the last tile begins early enough to end with the rows, and
// what it computes again has a place of its own.
struct SegmentMemory {
    uint8_t *keys, *values;
    float *scores, *product, *sums, *largest, *total, *decay;

    static int64_t floats(int64_t rows, int64_t dim) {
        return dim * SPAN / 2 + dim / LANES * (SPAN_VALUES / 4) + SCORES + TILE_ROWS * dim + rows * (dim + 3);
    }
    static SegmentMemory at(float* memory, int64_t rows, int64_t dim) {
        SegmentMemory m;
        m.keys = reinterpret_cast<uint8_t*>(memory);
        m.values = m.keys + dim * SPAN * int64_t(sizeof(uint16_t));
        m.scores = reinterpret_cast<float*>(m.values + dim / LANES * SPAN_VALUES);
        m.product = m.scores + SCORES;
        m.sums = m.product + TILE_ROWS * dim;
        m.largest = m.sums + rows * dim;
        m.total = m.largest + rows;
        m.decay = m.total + rows;
        return m;
    }
};

// Keys and values of a span in groups of 32; what is missing in the last one is its first key again, which weighs nothing.
// Keys i and i + 16 of a group are a pair of values, as `split` leaves their weights.
inline void stage_span(const SegmentRows& s, int64_t begin, int64_t count, const SegmentMemory& m) {
    for (int64_t first = 0; first < count; first += GROUP) {
        const uint16_t *keys[GROUP], *values[GROUP];
        for (int64_t i = 0; i < GROUP; ++i) {
            const int64_t at = begin + first + (first + i < count ? i : 0);
            keys[i] = s.k + at * s.k_row;
            values[i % LANES * 2 + i / LANES] = s.v + at * s.v_row;
        }
        stage_key_tiles(keys, GROUP, s.dim, m.keys + first / LANES * (s.dim / 2) * PAIR);
        stage_value_tiles(values, GROUP, s.dim, m.values + first / 2 * PAIR, SPAN_VALUES);
    }
}

// Products of a tile of rows with COUNT panels of 16 keys.
template <int COUNT>
inline void score_panels(const uint16_t* q, int64_t q_row, const uint8_t* keys, int64_t dim, float* scores, int64_t row) {
    zero_each<COUNT>();
    for (int64_t d = 0; d < dim; d += TILE_COLUMNS) {
        load_tile<4>(q + d, q_row * int64_t(sizeof(uint16_t)));
        multiply_each<4, COUNT>(keys + d / 2 * PAIR, dim / 2 * PAIR);
    }
    store_each<COUNT>(scores, row);
}

inline void score_span(const uint16_t* q, int64_t q_row, const uint8_t* keys, int64_t count, int64_t dim, float* scores) {
    const int64_t panel = dim / 2 * PAIR, row = scores_row(count);
    int64_t k = 0;
    for (; k + GROUP < count; k += 2 * GROUP) score_panels<4>(q, q_row, keys + k / LANES * panel, dim, scores + k, row);
    if (k < count) score_panels<2>(q, q_row, keys + k / LANES * panel, dim, scores + k, row);
}

// 2^x for x <= 0 to within 2^-18: a minimax polynomial of degree 4 on [-1/2, 1/2], half the operations of `wide::exp2`. Below
// 2^-126 it stays there. NaN for NaN.
inline __m512 power(__m512 x) {
    const __m512 round = _mm512_set1_ps(12582912.f);  // 1.5 * 2^23 leaves an integer in the low bits
    const __m512 bounded = _mm512_maskz_max_ps(0xffff, _mm512_set1_ps(-126.f), x);
    const __m512 shifted = _mm512_add_ps(bounded, round);
    const __m512 f = _mm512_sub_ps(bounded, _mm512_sub_ps(shifted, round));
    __m512 y = _mm512_set1_ps(0.009570102207362652f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.05591786280274391f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.240247443318367f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.6931217908859253f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.9999992847442627f));
    const __m512i raise = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), raise));
}

// The upper halves of 16 and 16 numbers: one of each side by side.
inline __m512i upper_halves(__m512i first, __m512i second) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second);
}

// Weights of 32 keys in place: a line of high parts, then one of low parts.
inline void split(__m512 first, __m512 second, float* to) {
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
    const auto rest = [upper](__m512 weight) {
        const __m512 high = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(weight), upper));
        return _mm512_castps_si512(_mm512_sub_ps(weight, high));
    };
    _mm512_storeu_si512(to, upper_halves(_mm512_castps_si512(first), _mm512_castps_si512(second)));
    _mm512_storeu_si512(to + LANES, upper_halves(rest(first), rest(second)));
}

// Scores of a row become weights 2^(scale score - largest so far). Returns by what weights of earlier spans shrink.
inline float weigh_span(float* scores, int64_t count, float scale, bool is_first, float* largest_score, float* total) {
    Lanes top = all(NO_SCORE), other = top;
    for (int64_t k = 0; k < count; k += GROUP) {
        top = larger(load(scores + k), top);
        other = larger(load(scores + k + LANES), other);
    }
    const float before = is_first ? NO_SCORE : *largest_score, here = top_of(larger(top, other)) * scale;
    const float after = here > before ? here : before;
    *largest_score = after;
    // Where every score is -inf so far, -inf - -inf must not make a NaN of weights that are next to nothing.
    const Lanes base = all(after == NO_SCORE ? 0.f : -after);
    Lanes sums = all(0.f), others = sums;
    const auto take = [&](int64_t k, uint32_t seen) {
        const Lanes first{power(fma(load(scores + k), all(scale), base).v)};
        const Lanes second{power(fma(load(scores + k + LANES), all(scale), base).v)};
        const Lanes w{_mm512_maskz_mov_ps(__mmask16(seen), first.v)}, x{_mm512_maskz_mov_ps(__mmask16(seen >> LANES), second.v)};
        sums = add(sums, w), others = add(others, x);
        split(w.v, x.v, scores + k);
    };
    const int64_t whole = count / GROUP * GROUP;
    for (int64_t k = 0; k < whole; k += GROUP) take(k, ~0u);
    if (whole < count) take(whole, (1u << (count - whole)) - 1);
    const float here_total = _mm512_reduce_add_ps(add(sums, others).v);
    const float decay = is_first ? 0.f : first_of(exp2(all(before - (after == NO_SCORE ? 0.f : after))));
    *total = is_first ? here_total : *total * decay + here_total;
    return decay;
}

// Weights times COUNT panels of 16 columns of values.
template <int COUNT>
inline void sum_panels(const float* weights, const uint8_t* values, int64_t count, float* sums, int64_t dim) {
    const int64_t row = scores_row(count) * int64_t(sizeof(float));
    zero_each<COUNT>();
    for (int64_t k = 0; k < count; k += GROUP) {
        const uint8_t* const right = values + k / 2 * PAIR;
        load_tile<4>(weights + k, row);
        multiply_each<4, COUNT>(right, SPAN_VALUES);
        load_tile<5>(weights + k + LANES, row);
        multiply_each<5, COUNT>(right, SPAN_VALUES);
    }
    store_each<COUNT>(sums, dim);
}

// sums [rows][dim], columns as `stage_value_tiles` leaves them
inline void sum_span(const float* weights, const uint8_t* values, int64_t count, int64_t dim, float* sums) {
    const int64_t panels = dim / LANES;
    int64_t c = 0;
    for (; c + 4 <= panels; c += 4) sum_panels<4>(weights, values + c * SPAN_VALUES, count, sums + c * LANES, dim);
    for (; c < panels; c += 2) sum_panels<2>(weights, values + c * SPAN_VALUES, count, sums + c * LANES, dim);
}

inline void add_span(const float* product, float decay, int64_t dim, float* sums) {
    for (int64_t d = 0; d < dim; d += LANES) store(sums + d, fma(load(sums + d), all(decay), load(product + d)));
}

inline void write_row(const float* sums, float total, int64_t dim, uint16_t* out) {
    const Lanes factor = all(1.f / total);
    for (int64_t d = 0; d < dim; d += 2 * LANES) {
        Lanes first, second;
        in_order(sums + d, &first, &second);
        store32(out + d, {mul(first, factor).v, mul(second, factor).v});
    }
}

// Some tiles of rows against a span. Each of the three steps is done for all of them before the next one: a tile that is loaded
// while its stores are on their way waits for each of them.
inline void attend_rows(const SegmentRows& s, const SegmentMemory& m, const Heights& heights, int64_t first_tile, int64_t last_tile,
                        int64_t begin) {
    const int64_t count = smaller_of(SPAN, s.length - begin), height = heights.height, row = scores_row(count), dim = s.dim;
    const bool is_first = begin == 0, is_last = begin + SPAN >= s.length;
    const auto query = [&](int64_t t) { return s.first + smaller_of(t * height, s.count - height); };
    for (int64_t t = first_tile; t < last_tile; ++t)
        score_span(s.q + query(t) * s.q_row, s.q_row, m.keys, count, dim, m.scores + (t - first_tile) * height * row);
    for (int64_t r = first_tile * height; r < last_tile * height; ++r) {
        float* const scores = m.scores + (r - first_tile * height) * row;
        m.decay[r] = weigh_span(scores, count, s.scale, is_first, m.largest + r, m.total + r);
    }
    for (int64_t t = first_tile; t < last_tile; ++t) {
        float* const sums = m.sums + t * height * dim;
        sum_span(m.scores + (t - first_tile) * height * row, m.values, count, dim, is_first ? sums : m.product);
        for (int64_t r = 0; r < height; ++r) {
            if (!is_first) add_span(m.product + r * dim, m.decay[t * height + r], dim, sums + r * dim);
            if (is_last) write_row(sums + r * dim, m.total[t * height + r], dim, s.out + (query(t) + r) * s.out_row);
        }
    }
}

// `memory`: of SegmentMemory::floats, for rows in whole tiles.
inline void attend_segment(const SegmentRows& s, float* memory) {
    const Heights heights = Heights::of(s.count);
    const SegmentMemory m = SegmentMemory::at(memory, heights.count * heights.height, s.dim);
    const Tiles tiles(heights.settings());
    for (int64_t begin = 0; begin < s.length; begin += SPAN) {
        const int64_t count = smaller_of(SPAN, s.length - begin);
        const int64_t at_once = SCORES / (heights.height * scores_row(count));
        stage_span(s, begin, count, m);
        for (int64_t t = 0; t < heights.count; t += at_once)
            attend_rows(s, m, heights, t, smaller_of(t + at_once, heights.count), begin);
    }
}

}  // namespace ocrquant::OCRQUANT_ISA::attention
