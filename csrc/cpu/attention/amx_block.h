// The products of a block of 64 keys in the tiles of AMX, for heads of whole tiles over keys and values of bf16, or of
// E4M3, which become bf16 first: bf16 has all of its values (16 rows over 200 keys took 47 us in fp32, and take 27; one row 19
// and 10; Xeon family 6 model 207, 2026-11-30).
//
//   scores   bf16 queries times bf16 keys, exact products summed in fp32; the scale comes afterwards
//   outputs  a weight as the sum of two bf16 numbers (16 bits of it) times bf16 values
//
// What a row gets depends on the row alone, as in tiles.h: an element of a product has its own row and column, a key that
// does not exist is zero in values and weights, and one that a row does not see weighs zero, which adds nothing to what is
// finite. Where it is not finite, rows are taken one by one with such keys as zeros.
#pragma once

#include "attention/tiles.h"
#include "common/bf16_lines.h"
#include "linear/amx.h"

namespace ocrquant::OCRQUANT_ISA::attention {

constexpr int64_t PAIR = LINE;                             // bytes of two keys' 16 columns, or of 16 keys' two columns
constexpr int64_t VALUES_TILES = BLOCK / 2 * PAIR;         // bytes of 16 columns of values
constexpr int64_t WEIGHTS_ROW = BLOCK * sizeof(float);     // a row of weights: 64 high parts, 64 low parts
constexpr int64_t LOW_PARTS = BLOCK * sizeof(uint16_t);
constexpr int64_t STEP = TILE_COLUMNS * sizeof(uint16_t);  // bytes of a row of a left operand's tile

// Rows in tiles of one height; those of the last tile may go `count - 1` beyond the rows.
struct Heights {
    int64_t count, height;

    static Heights of(int64_t rows) {
        const int64_t tiles = rows > 0 ? (rows + TILE_ROWS - 1) / TILE_ROWS : 1;
        return {tiles, (rows + tiles - 1) / tiles};
    }
    TileSettings settings() const {
        TileSettings settings;
        for (int tile = 0; tile < 6; ++tile) settings.set(tile, height, LINE);
        for (int tile = 6; tile < 8; ++tile) settings.set(tile, TILE_ROWS, LINE);
        return settings;
    }
};

// The settings of tiles for a whole span: setting them takes as long as the products of a few rows over a block.
class SpanTiles {
  public:
    SpanTiles(bool used, const Heights& heights) : used_(used) {
        const TileSettings settings = heights.settings();
        if (used_) asm volatile("ldtilecfg %0" : : "m"(settings));
    }
    ~SpanTiles() {
        if (used_) asm volatile("tilerelease");
    }
    SpanTiles(const SpanTiles&) = delete;
    SpanTiles& operator=(const SpanTiles&) = delete;

  private:
    bool used_;
};

// bf16 of an E4M3 code without its sign.
constexpr uint16_t bf16_of(int code) {
    if (code == 0x7f) return 0x7fc0;
    if (code == 0) return 0;
    int exponent = code >> 3, part = code & 7;
    if (exponent == 0) {  // `part` times 2^-9, which bf16 has as a normal number
        exponent = 1;
        for (; part < 8; part *= 2) --exponent;
        part -= 8;
    }
    return uint16_t((exponent + 120) << 7 | part << 4);
}

struct CodeTables {
    alignas(LINE) uint8_t low[128], high[128];

    constexpr CodeTables() : low{}, high{} {
        for (int code = 0; code < 128; ++code) low[code] = uint8_t(bf16_of(code)), high[code] = uint8_t(bf16_of(code) >> 8);
    }
};

constexpr CodeTables CODE_TABLES;

// Codes of E4M3 to bf16: the two bytes of each come from tables by its lower seven bits, and the sign goes on top.
class WideCodes {
  public:
    WideCodes() {
        for (int half = 0; half < 2; ++half) {
            low_[half] = _mm512_load_si512(CODE_TABLES.low + 64 * half);
            high_[half] = _mm512_load_si512(CODE_TABLES.high + 64 * half);
        }
    }

    // `dim` is a multiple of 32.
    void write(const uint8_t* from, int64_t dim, uint16_t* to) const {
        // Of 64 codes the unpacking below takes the lower eight of each sixteen first.
        const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), sign = _mm512_set1_epi8(-128);
        for (int64_t d = 0; d < dim; d += 64) {
            const bool is_whole = dim - d >= 64;
            const __m512i codes = _mm512_maskz_permutexvar_epi64(
                0xff, order, _mm512_maskz_loadu_epi8(is_whole ? ~__mmask64(0) : __mmask64(0xffffffffu), from + d));
            const __m512i low = _mm512_permutex2var_epi8(low_[0], codes, low_[1]);
            const __m512i magnitude = _mm512_permutex2var_epi8(high_[0], codes, high_[1]);
            const __m512i high = _mm512_or_si512(magnitude, _mm512_and_si512(codes, sign));
            _mm512_storeu_si512(to + d, _mm512_unpacklo_epi8(low, high));
            if (is_whole) _mm512_storeu_si512(to + d + 32, _mm512_unpackhi_epi8(low, high));
        }
    }

  private:
    __m512i low_[2], high_[2];
};

// [panel of 16 keys][dim / 2][16 keys][2]; keys from `count` on are the first one, and what they give is never used.
inline void stage_key_tiles(const uint16_t* const* keys, int64_t count, int64_t dim, uint8_t* panels) {
    for (int64_t first = 0; first < count; first += LANES) {
        for (int64_t d = 0; d < dim; d += TILE_COLUMNS) {
            __m512 rows[16];
            for (int64_t k = 0; k < 16; ++k) rows[k] = _mm512_loadu_ps(keys[first + k < count ? first + k : 0] + d);
            turn_over(rows);
            uint8_t* const to = panels + (first / LANES * dim + d) / 2 * PAIR;
            for (int64_t i = 0; i < 16; ++i) _mm512_storeu_ps(to + i * PAIR, rows[i]);
        }
    }
}

// [panel of 16 columns][pair of keys][16 columns][2]; keys from `count` on are zero. Of 32 columns the first panel has the
// lower four of each eight and the second one the upper four: `in_order` puts them right again.
inline void stage_value_tiles(const uint16_t* const* values, int64_t count, int64_t dim, uint8_t* panels,
                              int64_t panel = VALUES_TILES) {
    for (int64_t k = 0; k < rounded_up(count, TILE_COLUMNS); k += 2) {
        for (int64_t d = 0; d < dim; d += TILE_COLUMNS) {
            const __m512i even = k < count ? _mm512_loadu_si512(values[k] + d) : _mm512_setzero_si512();
            const __m512i odd = k + 1 < count ? _mm512_loadu_si512(values[k + 1] + d) : _mm512_setzero_si512();
            uint8_t* const to = panels + d / LANES * panel + k / 2 * PAIR;
            _mm512_storeu_si512(to, _mm512_unpacklo_epi16(even, odd));
            _mm512_storeu_si512(to + panel, _mm512_unpackhi_epi16(even, odd));
        }
    }
}

inline void in_order(const float* from, Lanes* first, Lanes* second) {
    const __m512 lower = _mm512_loadu_ps(from), upper = _mm512_loadu_ps(from + LANES);
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    first->v = _mm512_permutex2var_ps(lower, low, upper);
    second->v = _mm512_permutex2var_ps(lower, _mm512_add_epi32(low, _mm512_set1_epi32(8)), upper);
}

inline bool is_finite(const uint16_t* values, int64_t dim) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 found = 0;
    for (int64_t d = 0; d < dim; d += TILE_COLUMNS)
        found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(values + d), exponent), exponent);
    return found == 0;
}

// A row of weights as its high and low parts.
inline void split_weights(const __m512 (&w)[PANELS], float* row) {
    uint8_t* const to = reinterpret_cast<uint8_t*>(row);
    for (int64_t c = 0; c < PANELS; c += 2) {
        const __m512i high = (__m512i)_mm512_cvtne2ps_pbh(w[c + 1], w[c]);
        const __m256i one = _mm512_castsi512_si256(high), other = _mm512_extracti64x4_epi64(high, 1);
        const auto low = [](__m512 weight, __m256i part) {
            return _mm512_sub_ps(weight, widened16(part));
        };
        _mm512_storeu_si512(to + c * LINE / 2, high);
        _mm512_storeu_si512(to + LOW_PARTS + c * LINE / 2, (__m512i)_mm512_cvtne2ps_pbh(low(w[c + 1], other), low(w[c], one)));
    }
}

inline __m512 larger(__m512 a, __m512 b) { return _mm512_maskz_max_ps(0xffff, a, b); }

// The largest lane of each of sixteen registers, by halves: 46 instructions for all, where one register alone takes nine.
inline __m512 largest_of_each(const __m512 (&x)[LANES]) {
    __m512 half[8], quarter[4], pair[2];
    for (int i = 0; i < 8; ++i)
        half[i] = larger(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x88), _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xdd));
    for (int i = 0; i < 4; ++i) {
        const __m512 a = half[2 * i], b = half[2 * i + 1];
        quarter[i] = larger(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    for (int i = 0; i < 2; ++i) {
        const __m512 a = quarter[2 * i], b = quarter[2 * i + 1];
        pair[i] = larger(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    const __m512 all = larger(_mm512_shuffle_ps(pair[0], pair[1], 0x44), _mm512_shuffle_ps(pair[0], pair[1], 0xee));
    return _mm512_maskz_permutexvar_ps(0xffff, _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), all);
}

// Scores of at most sixteen rows become split weights; as `weigh`, and with its bits, but the largest scores of all rows come first
// and together, lest each row wait for its own. `seen` of a row: keys that it sees.
template <class Seen>
inline void weigh_rows(float* scores, int64_t rows, float scale, Seen seen, float* largest, float* totals, float* decay) {
    const __m512 nothing = _mm512_set1_ps(-__builtin_inff()), scales = _mm512_set1_ps(scale);
    const auto scaled = [&](int64_t r, int64_t c) {
        const int64_t count = seen(r);
        const uint64_t kept = count >= BLOCK ? ~uint64_t(0) : (uint64_t(1) << count) - 1;
        return _mm512_mask_mul_ps(nothing, __mmask16(kept >> c * LANES), _mm512_loadu_ps(scores + r * BLOCK + c * LANES), scales);
    };
    const auto top = [&](int64_t r) {
        __m512 most = nothing;
        for (int64_t c = 0; c < PANELS; ++c) most = larger(scaled(r, c), most);
        return most;
    };
    __m512 tops;
    if (rows == 1) {
        tops = _mm512_set1_ps(_mm512_reduce_max_ps(top(0)));
    } else {
        __m512 each[LANES];
        for (int64_t r = 0; r < LANES; ++r) each[r] = r < rows ? top(r) : nothing;
        tops = largest_of_each(each);
    }
    const __mmask16 those = __mmask16((1u << rows) - 1);
    const __m512 before = _mm512_maskz_loadu_ps(those, largest), after = larger(tops, before);
    // Where every score is -inf so far, -inf - -inf must not make a NaN of weights that are zero.
    const __m512 base = _mm512_mask_mov_ps(after, _mm512_cmp_ps_mask(after, nothing, _CMP_EQ_OQ), _mm512_setzero_ps());
    alignas(LINE) float bases[LANES], shrunk[LANES];
    _mm512_store_ps(bases, base);
    _mm512_store_ps(shrunk, exp2({_mm512_sub_ps(before, base)}).v);
    _mm512_mask_storeu_ps(largest, those, after);
    _mm512_mask_storeu_ps(decay, those, _mm512_load_ps(shrunk));
    for (int64_t r = 0; r < rows; ++r) {
        __m512 w[PANELS];
        for (int64_t c = 0; c < PANELS; ++c) w[c] = exp2({_mm512_sub_ps(scaled(r, c), _mm512_set1_ps(bases[r]))}).v;
        __m512 sums = w[0];
        for (int64_t c = 1; c < PANELS; ++c) sums = _mm512_add_ps(sums, w[c]);
        float* const total = totals + r * LANES;
        _mm512_storeu_ps(total, _mm512_fmadd_ps(_mm512_loadu_ps(total), _mm512_set1_ps(shrunk[r]), sums));
        split_weights(w, scores + r * BLOCK);
    }
}

// Sums 0 .. COUNT of a left tile and COUNT right ones.
template <int LEFT, int COUNT, int INDEX = 0>
inline void multiply_each(const uint8_t* right, int64_t panel) {
    constexpr int RIGHT = 6 + INDEX % 2;
    load_tile<RIGHT>(right + INDEX * panel, PAIR);
    multiply_tiles<INDEX, LEFT, RIGHT>();
    if constexpr (INDEX + 1 < COUNT) multiply_each<LEFT, COUNT, INDEX + 1>(right, panel);
}

template <int COUNT, int INDEX = 0>
inline void zero_each() {
    zero_tile<INDEX>();
    if constexpr (INDEX + 1 < COUNT) zero_each<COUNT, INDEX + 1>();
}

template <int COUNT, int INDEX = 0>
inline void store_each(float* to, int64_t stride) {
    store_tile<INDEX>(to + INDEX * LANES, stride * int64_t(sizeof(float)));
    if constexpr (INDEX + 1 < COUNT) store_each<COUNT, INDEX + 1>(to, stride);
}

// scores [rows][BLOCK], from queries [rows][dim]
inline void score_tiles(const uint16_t* q, const uint8_t* keys, int64_t dim, const Heights& heights, float* scores) {
    for (int64_t t = 0; t < heights.count; ++t, q += heights.height * dim, scores += heights.height * BLOCK) {
        zero_each<4>();
        for (int64_t d = 0; d < dim; d += TILE_COLUMNS) {
            load_tile<4>(q + d, dim * int64_t(sizeof(uint16_t)));
            multiply_each<4, PANELS>(keys + d / 2 * PAIR, dim / 2 * PAIR);
        }
        store_each<PANELS>(scores, BLOCK);
    }
}

// High and low parts of the weights times COUNT panels of values.
template <int COUNT>
inline void value_panels(const uint8_t* weights, const uint8_t* values, int64_t steps, float* product, int64_t stride) {
    zero_each<COUNT>();
    for (int64_t s = 0; s < steps; ++s) {
        const uint8_t* const right = values + s * TILE_ROWS * PAIR;
        load_tile<4>(weights + s * STEP, WEIGHTS_ROW);
        multiply_each<4, COUNT>(right, VALUES_TILES);
        load_tile<5>(weights + LOW_PARTS + s * STEP, WEIGHTS_ROW);
        multiply_each<5, COUNT>(right, VALUES_TILES);
    }
    store_each<COUNT>(product, stride);
}

// product [rows][dim], columns as `stage_value_tiles` left them
inline void value_tiles(const float* weights, const uint8_t* values, int64_t count, int64_t dim, const Heights& heights,
                        float* product) {
    const int64_t steps = (count + TILE_COLUMNS - 1) / TILE_COLUMNS, panels = dim / LANES;
    for (int64_t t = 0; t < heights.count; ++t) {
        const uint8_t* const w = reinterpret_cast<const uint8_t*>(weights + t * heights.height * BLOCK);
        float* const to = product + t * heights.height * dim;
        int64_t c = 0;
        for (; c + 4 <= panels; c += 4) value_panels<4>(w, values + c * VALUES_TILES, steps, to + c * LANES, dim);
        for (; c < panels; c += 2) value_panels<2>(w, values + c * VALUES_TILES, steps, to + c * LANES, dim);
    }
}

// out = out decay + product
inline void add_product(const float* product, float decay, int64_t dim, float* out) {
    for (int64_t d = 0; d < dim; d += 2 * LANES) {
        Lanes first, second;
        in_order(product + d, &first, &second);
        store(out + d, fma(load(out + d), all(decay), first));
        store(out + d + LANES, fma(load(out + d + LANES), all(decay), second));
    }
}

}  // namespace ocrquant::OCRQUANT_ISA::attention
