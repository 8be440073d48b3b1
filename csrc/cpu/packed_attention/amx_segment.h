// Rows of a segment against all its keys in the tiles of AMX, for heads of whole tiles.
//
//   scores   bf16 queries, where they lie, times bf16 keys: exact products summed in fp32
//   weights  2^(scale score - largest) to within 2^-15, each as the sum of two bf16 numbers
//   outputs  weights times bf16 values, summed in the tiles over a whole span of keys
//
// Rows of an image see all keys, unlike those over a cache, so the softmax of a span needs no running along. Work on vectors is
// done while tiles are multiplied: largest scores of some keys while the next ones are scored, weights of some keys while those
// before them meet their values. What a row gets depends on the row and its segment alone. Where values are not finite, outputs
// of their columns are NaN.
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
    float *scores, *product;
    float* tops;  // a row's largest scores in lanes, then its sum of weights in lanes
    float *sums, *largest, *total;

    static int64_t floats(int64_t rows, int64_t dim) {
        return dim * SPAN / 2 + dim / LANES * (SPAN_VALUES / 4) + SCORES + TILE_ROWS * dim + rows * (dim + LANES + 2);
    }
    static SegmentMemory at(float* memory, int64_t rows, int64_t dim) {
        SegmentMemory m;
        m.keys = reinterpret_cast<uint8_t*>(memory);
        m.values = m.keys + dim * SPAN * int64_t(sizeof(uint16_t));
        m.scores = reinterpret_cast<float*>(m.values + dim / LANES * SPAN_VALUES);
        m.product = m.scores + SCORES;
        m.tops = m.product + TILE_ROWS * dim;
        m.sums = m.tops + rows * LANES;
        m.largest = m.sums + rows * dim;
        m.total = m.largest + rows;
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

// The largest of some scores of each row in lanes.
inline void raise_tops(const float* scores, int64_t row, int64_t rows, int64_t first, int64_t last, float* tops) {
    for (int64_t r = 0; r < rows; ++r) {
        Lanes top = first == 0 ? all(NO_SCORE) : load(tops + r * LANES);
        for (int64_t k = first; k < last; k += LANES) top = larger(load(scores + r * row + k), top);
        store(tops + r * LANES, top);
    }
}

// Scores, scaled, from which on a rounding moves them by 1 or more.
constexpr float VAST = 0x1p24f;

// Keys whose scores are computed at once.
constexpr int64_t SCORED = 2 * GROUP;

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

// A tile of rows whose scores become weights 2^(scale score - largest so far).
struct Weighing {
    float* scores;
    float* tops;  // then sums of weights in lanes
    int64_t row, rows, count;
    float scale;
    float base[TILE_ROWS], decay[TILE_ROWS];  // minus the largest score; by what weights of earlier spans shrink
    bool is_vast[TILE_ROWS];                  // whether the largest score is

    // Finishes the largest scores.
    void begin(bool is_first, float* largest) {
        raise_tops(scores, row, rows, (count - 1) / SCORED * SCORED, rounded_up(count, GROUP), tops);
        for (int64_t r = 0; r < rows; ++r) {
            const float before = is_first ? NO_SCORE : largest[r], here = top_of(load(tops + r * LANES)) * scale;
            const float after = here > before ? here : before;
            largest[r] = after;
            // Where every score is -inf so far, -inf - -inf must not make a NaN of weights that are next to nothing.
            base[r] = after == NO_SCORE ? 0.f : -after;
            is_vast[r] = after > VAST || after < -VAST;
            decay[r] = is_first ? 0.f : first_of(exp2(all(before + base[r])));
            store(tops + r * LANES, all(0.f));
        }
    }

    // Scores minus the largest one, scaled. In one step that is as far off as the largest one was rounded, all keys alike; but where
    // that is more than an exponent holds, `power` would have no answer. Vast scores are rounded like the largest one instead.
    __m512 below_top(int64_t r, Lanes score) const {
        if (__builtin_expect(is_vast[r], 0)) return add(mul(score, all(scale)), all(base[r])).v;
        return fma(score, all(scale), all(base[r])).v;
    }

    // Weights of 32 keys; those beyond the last key are zero.
    void weigh(int64_t k) {
        const uint32_t seen = count - k >= GROUP ? ~0u : (1u << (count - k)) - 1;
        for (int64_t r = 0; r < rows; ++r) {
            float *const from = scores + r * row + k, *const sums = tops + r * LANES;
            const Lanes first{power(below_top(r, load(from)))}, second{power(below_top(r, load(from + LANES)))};
            const __m512 w = _mm512_maskz_mov_ps(__mmask16(seen), first.v), x = _mm512_maskz_mov_ps(__mmask16(seen >> LANES), second.v);
            store(sums, add(load(sums), add({w}, {x})));
            split(w, x, from);
        }
    }

    void end(bool is_first, float* total) const {
        for (int64_t r = 0; r < rows; ++r) {
            const float here = _mm512_reduce_add_ps(load(tops + r * LANES).v);
            total[r] = is_first ? here : total[r] * decay[r] + here;
        }
    }
};

// Scores of a tile of rows, and the largest ones but for those of the last keys, which are on their way.
inline void score_span(const SegmentRows& s, const SegmentMemory& m, int64_t query, const Weighing& w) {
    const int64_t dim = s.dim, panel = dim / 2 * PAIR;
    const uint16_t* const q = s.q + query * s.q_row;
    for (int64_t k = 0; k < w.count; k += SCORED) {
        const uint8_t* const keys = m.keys + k / LANES * panel;
        if (k + GROUP < w.count) {
            score_panels<4>(q, s.q_row, keys, dim, w.scores + k, w.row);
        } else {
            score_panels<2>(q, s.q_row, keys, dim, w.scores + k, w.row);
        }
        if (k > 0) raise_tops(w.scores, w.row, w.rows, k - SCORED, k, w.tops);
    }
}

// Weights of 32 keys from `k` on times COUNT panels of 16 columns of values.
template <int COUNT>
inline void add_group(const Weighing& w, int64_t k, const uint8_t* values) {
    const int64_t row = w.row * int64_t(sizeof(float));
    load_tile<4>(w.scores + k, row);
    multiply_each<4, COUNT>(values + k / 2 * PAIR, SPAN_VALUES);
    load_tile<5>(w.scores + k + LANES, row);
    multiply_each<5, COUNT>(values + k / 2 * PAIR, SPAN_VALUES);
}

template <int COUNT>
inline void sum_panels(const Weighing& w, const uint8_t* values, float* sums, int64_t dim) {
    zero_each<COUNT>();
    for (int64_t k = 0; k < w.count; k += GROUP) add_group<COUNT>(w, k, values);
    store_each<COUNT>(sums, dim);
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

// Some tiles of rows against a span of keys.
struct SpanOfRows {
    const SegmentRows& s;
    const SegmentMemory& m;
    int64_t height, first_tile, last_tile, begin, count;

    bool is_first() const { return begin == 0; }
    int64_t query(int64_t t) const { return s.first + smaller_of(t * height, s.count - height); }

    Weighing weighing(int64_t t) const {
        const int64_t row = scores_row(count);
        float* const scores = m.scores + (t - first_tile) * height * row;
        return {scores, m.tops + t * height * LANES, row, height, count, s.scale, {}, {}, {}};
    }

    // All tiles are scored before the first is weighed, and a group of keys is multiplied when the next one is weighed, be it
    // of the next tile: what tiles store takes a while to arrive, and so do stores that a tile is loaded from.
    template <int COUNT>
    void run() const {
        for (int64_t t = first_tile; t < last_tile; ++t) score_span(s, m, query(t), weighing(t));
        const int64_t last = (count - 1) / GROUP * GROUP;
        Weighing w[2];
        for (int64_t t = first_tile; t < last_tile; ++t) {
            Weighing &here = w[t % 2], &before = w[(t + 1) % 2];
            here = weighing(t);
            here.begin(is_first(), m.largest + t * height);
            for (int64_t k = 0; k <= last; k += GROUP) {
                here.weigh(k);
                if (k > 0) {
                    add_group<COUNT>(here, k - GROUP, m.values);
                    continue;
                }
                if (t > first_tile) finish<COUNT>(before, t - 1, last);
                zero_each<COUNT>();
            }
        }
        finish<COUNT>(w[(last_tile - 1) % 2], last_tile - 1, last);
    }

    // The last group of the first COUNT panels of values, the other panels, and what became of the rows.
    template <int COUNT>
    void finish(const Weighing& w, int64_t t, int64_t last) const {
        const int64_t dim = s.dim, panels = dim / LANES;
        float *const sums = m.sums + t * height * dim, *const total = m.total + t * height;
        float* const product = is_first() ? sums : m.product;
        add_group<COUNT>(w, last, m.values);
        store_each<COUNT>(product, dim);
        int64_t c = COUNT;
        for (; c + 4 <= panels; c += 4) sum_panels<4>(w, m.values + c * SPAN_VALUES, product + c * LANES, dim);
        for (; c < panels; c += 2) sum_panels<2>(w, m.values + c * SPAN_VALUES, product + c * LANES, dim);
        w.end(is_first(), total);
        for (int64_t r = 0; r < height; ++r) {
            if (!is_first()) add_span(product + r * dim, w.decay[r], dim, sums + r * dim);
            if (begin + count == s.length) write_row(sums + r * dim, total[r], dim, s.out + (query(t) + r) * s.out_row);
        }
    }
};

// `memory`: of SegmentMemory::floats, for rows in whole tiles.
inline void attend_segment(const SegmentRows& s, float* memory) {
    const Heights heights = Heights::of(s.count);
    const SegmentMemory m = SegmentMemory::at(memory, heights.count * heights.height, s.dim);
    const Tiles tiles(heights.settings());
    for (int64_t begin = 0; begin < s.length; begin += SPAN) {
        const int64_t count = smaller_of(SPAN, s.length - begin);
        const int64_t at_once = SCORES / (heights.height * scores_row(count));
        stage_span(s, begin, count, m);
        for (int64_t t = 0; t < heights.count; t += at_once) {
            const SpanOfRows span{s, m, heights.height, t, smaller_of(t + at_once, heights.count), begin, count};
            s.dim >= 4 * LANES ? span.run<4>() : span.run<2>();
        }
    }
}

}  // namespace ocrquant::OCRQUANT_ISA::attention
