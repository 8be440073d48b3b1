// A chunk of one panel as the float products read it: Unit [columns / UNIT][16].
#pragma once

#include "linear/float_rows.h"
#include "linear/nvfp4_blocks.h"

namespace ocrquant::OCRQUANT_ISA {

// Bytes of the first `columns` columns of a panel; `columns` is a multiple of CHUNK or the whole padded width.
inline int64_t panel_bytes(LinearKind kind, int64_t columns) {
    if (kind == LinearKind::bf16) return columns * PANEL * 2;
    if (kind == LinearKind::nvfp4 || kind == LinearKind::nvfp4_plain) return nvfp4_bytes(columns / BLOCK);
    return columns * PANEL;
}

#if defined(OCRQUANT_WITH_AVX512)

// Of 64 codes even bytes become the pairs of columns 0 and 1, odd ones those of columns 2 and 3; in 2**-DOWN of their values. By
// lookup, for codes of any value.
template <int DOWN>
__attribute__((noinline, cold)) void fp8_by_table(const uint8_t* codes, int64_t count, Unit* w) {
    const E4m3Table& table = e4m3_table<-DOWN>();
    const __m512i high0 = _mm512_load_si512(table.high), high1 = _mm512_load_si512(table.high + 64);
    const __m512i low0 = _mm512_load_si512(table.low), low1 = _mm512_load_si512(table.low + 64);
    const __m512i sign = _mm512_set1_epi8(char(0x80)), upper = _mm512_set1_epi16(short(0xff00));
    for (int64_t i = 0; i < count; ++i, w += 2 * PANEL) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * i);  // lookups read seven bits
        const __m512i high = _mm512_or_si512(_mm512_permutex2var_epi8(high0, v, high1), _mm512_and_si512(v, sign));
        const __m512i low = _mm512_permutex2var_epi8(low0, v, low1);
        _mm512_store_si512(w, _mm512_or_si512(_mm512_slli_epi16(high, 8), _mm512_andnot_si512(upper, low)));
        _mm512_store_si512(w + PANEL, _mm512_or_si512(_mm512_and_si512(high, upper), _mm512_srli_epi16(low, 8)));
    }
}

// From the exponent's bias of E4M3 to that of bf16 are 120 binades. 112 of them are bits that four bits of exponent leave clear,
// which the instruction that clears the others sets as well; the sum that moves it all the way is one more.
constexpr int FEWER_BINADES = 8;

// The same for codes that are neither zero nor subnormal: bits moved into place, and the exponent raised. A NaN becomes 480; the
// scale of its channel is NaN.
template <int DOWN>
inline void fp8_by_shifts(const uint8_t* codes, int64_t count, Unit* w) {
    const __m512i bits = _mm512_set1_epi16(short(0x87f0)), raised = _mm512_set1_epi16((120 - FEWER_BINADES) << 7);
    for (int64_t i = 0; i < count; ++i, w += 2 * PANEL) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * i);
        __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 4), odd = _mm512_srai_epi16(v, 4);
        even = _mm512_ternarylogic_epi32(even, bits, raised, 0xea);  // (even & bits) | raised
        odd = _mm512_ternarylogic_epi32(odd, bits, raised, 0xea);
        if (DOWN == 0) {
            even = _mm512_add_epi16(even, _mm512_set1_epi16(FEWER_BINADES << 7));
            odd = _mm512_add_epi16(odd, _mm512_set1_epi16(FEWER_BINADES << 7));
        }
        _mm512_store_si512(w, even);
        _mm512_store_si512(w + PANEL, odd);
    }
}

// 32 columns at a time: where a channel's largest weight is 448, one code in some thousands is zero or subnormal.
template <int DOWN = 0>
inline void decode_fp8(const uint8_t* codes, int64_t columns, Unit* w) {
    static_assert(DOWN == 0 || DOWN == FEWER_BINADES, "one of the two that are cheap");
    constexpr int64_t AT_ONCE = 8;
    for (int64_t left = columns / COLUMNS; left > 0; left -= AT_ONCE, codes += 64 * AT_ONCE, w += 2 * PANEL * AT_ONCE) {
        const int64_t count = smaller(left, AT_ONCE);
        // One chain of masks: joined afterwards, they would go through the port that shifts.
        __mmask64 normal = ~__mmask64(0);
        for (int64_t i = 0; i < count; ++i) normal = _mm512_mask_test_epi8_mask(normal, _mm512_loadu_si512(codes + 64 * i), _mm512_set1_epi8(0x78));
        __builtin_expect(~normal != 0, 0) ? fp8_by_table<DOWN>(codes, count, w) : fp8_by_shifts<DOWN>(codes, count, w);
    }
}

inline void decode_nvfp4(const uint8_t* chunk, int64_t columns, Unit* w) {
    const __m512 values = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
    const int64_t blocks = columns / BLOCK;
    for (int64_t b = 0; b < blocks; ++b) {
        const Nvfp4Group group = nvfp4_group(chunk, b / GROUP, blocks);
        const __m512 scale = _mm512_mul_ps(Scales(group.scales).of(int(b % GROUP)), _mm512_set1_ps(SCALE_UP));
        for (int half = 0; half < 2; ++half) {
            const __m512i v = _mm512_loadu_si512(group.codes + b % GROUP * BLOCK_BYTES + 64 * half);
            for (int pair = 0; pair < 4; ++pair, w += PANEL) {  // reads the lowest four bits of each word of 32
                const __m512i even = _mm512_srlv_epi32(v, _mm512_set1_epi32(4 * pair));
                const __m512i odd = _mm512_srlv_epi32(v, _mm512_set1_epi32(4 * pair + 16));
                const __m512 first = _mm512_mul_ps(_mm512_permutexvar_ps(even, values), scale);
                const __m512 second = _mm512_mul_ps(_mm512_permutexvar_ps(odd, values), scale);
                const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
                const __m512i high = _mm512_and_si512(_mm512_castps_si512(second), upper);
                _mm512_store_si512(w, _mm512_or_si512(low, high));
            }
        }
    }
}

constexpr bool READS_BF16 = true;  // bf16 panels are pairs already
inline void decode_bf16(const uint8_t*, int64_t, Unit*) {}

#elif defined(OCRQUANT_WITH_AVX2)

// Eight outputs by four columns in E4M3, as four vectors in 2**-120 of their values; see WEIGHT_DOWN.
struct Quad {
    __m256 column[4];
};
inline Quad quad_from_e4m3(const uint8_t* codes) {
    const __m256i mask = _mm256_set1_epi16(short(0x87f0)), zero = _mm256_setzero_si256();
    const __m256i lower = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,  //
                                           -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
    // One byte earlier the even bytes are the upper ones of their words. First-generation Zen shifts on one port only, hence
    // this load and the shuffles in place of shifts.
    const __m256i even = _mm256_and_si256(_mm256_srai_epi16(load(codes - 1), 4), mask);
    const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(load(codes), 4), mask);
    return {{_mm256_castsi256_ps(_mm256_shuffle_epi8(even, lower)), _mm256_castsi256_ps(_mm256_blend_epi16(zero, even, 0xaa)),
             _mm256_castsi256_ps(_mm256_shuffle_epi8(odd, lower)), _mm256_castsi256_ps(_mm256_blend_epi16(zero, odd, 0xaa))}};
}

// Eight outputs by two columns in bf16.
inline __m256 lower_bf16(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 upper_bf16(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000))));
}

inline void decode_fp8(const uint8_t* codes, int64_t columns, float* w) {
    for (int64_t k = 0; k < columns; k += COLUMNS, codes += PANEL * COLUMNS, w += PANEL * COLUMNS) {
        const Quad first = quad_from_e4m3(codes), second = quad_from_e4m3(codes + 32);
        for (int i = 0; i < 4; ++i) {
            _mm256_store_ps(w + PANEL * i, first.column[i]);
            _mm256_store_ps(w + PANEL * i + 8, second.column[i]);
        }
    }
}

constexpr bool READS_BF16 = false;
inline void decode_bf16(const uint8_t* chunk, int64_t columns, float* to) {
    for (int64_t k = 0; k < columns; k += 2, chunk += 4 * PANEL, to += 2 * PANEL) {
        const __m256i first = load(chunk), second = load(chunk + 32);
        _mm256_store_ps(to, lower_bf16(first));
        _mm256_store_ps(to + 8, lower_bf16(second));
        _mm256_store_ps(to + 16, upper_bf16(first));
        _mm256_store_ps(to + 24, upper_bf16(second));
    }
}

inline void decode_nvfp4(const uint8_t* chunk, int64_t columns, float* w) {
    const __m256i doubled = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,  //
                                             0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256 up = _mm256_set1_ps(0.5f * SCALE_UP);
    const int64_t blocks = columns / BLOCK;
    for (int64_t b = 0; b < blocks; ++b) {
        const Nvfp4Group group = nvfp4_group(chunk, b / GROUP, blocks);
        const Scales scales(group.scales);
        const __m256 low_scale = _mm256_mul_ps(Scales::move(scales.low, int(b % GROUP)), up);
        const __m256 high_scale = _mm256_mul_ps(Scales::move(scales.high, int(b % GROUP)), up);
        for (int part = 0; part < 4; ++part) {  // eight columns of eight outputs
            const int half = part / 2, side = part % 2;
            const __m256 scale = side == 0 ? low_scale : high_scale;
            const __m256i v = load(group.codes + b % GROUP * BLOCK_BYTES + 32 * part);
            float* const to = w + (b * BLOCK + 8 * half) * PANEL + 8 * side;
            const auto column = [&](int k, __m256i words) {  // the code in the upper byte of each word
                _mm256_store_ps(to + k * PANEL, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(words, 24)), scale));
            };
            const __m256i low = _mm256_shuffle_epi8(doubled, _mm256_and_si256(v, nibble));
            const __m256i high = _mm256_shuffle_epi8(doubled, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
            column(0, _mm256_slli_epi32(low, 24));
            column(4, _mm256_slli_epi32(low, 16));
            column(1, _mm256_slli_epi32(low, 8));
            column(5, low);
            column(2, _mm256_slli_epi32(high, 24));
            column(6, _mm256_slli_epi32(high, 16));
            column(3, _mm256_slli_epi32(high, 8));
            column(7, high);
        }
    }
}

#else

inline void decode_fp8(const uint8_t* codes, int64_t columns, float* w) {
    static constexpr int byte_of_column[4] = {0, 2, 1, 3};
    for (int64_t k = 0; k < columns; ++k)
        for (int o = 0; o < PANEL; ++o)
            w[k * PANEL + o] = from_e4m3(codes[k / COLUMNS * PANEL * COLUMNS + o * COLUMNS + byte_of_column[k % COLUMNS]]);
}

constexpr bool READS_BF16 = false;
inline void decode_bf16(const uint8_t* chunk, int64_t columns, float* w) {
    const uint16_t* const values = reinterpret_cast<const uint16_t*>(chunk);
    for (int64_t k = 0; k < columns; ++k)
        for (int o = 0; o < PANEL; ++o) w[k * PANEL + o] = from_bf16(values[k / 2 * 2 * PANEL + 2 * o + k % 2]);
}

inline void decode_nvfp4(const uint8_t* chunk, int64_t columns, float* w) {
    static constexpr float values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const int64_t blocks = columns / BLOCK;
    for (int64_t k = 0; k < columns; ++k) {
        const Nvfp4Group group = nvfp4_group(chunk, k / (BLOCK * GROUP), blocks);
        const int64_t b = k / BLOCK % GROUP;
        for (int o = 0; o < PANEL; ++o)
            w[k * PANEL + o] = values[nvfp4_code(group.codes + b * BLOCK_BYTES, o, k % BLOCK)] * from_e4m3(group.scales[o * GROUP + b]);
    }
}

#endif

// Decodes `columns` columns from `chunk` on.
inline void decode(LinearKind kind, const uint8_t* chunk, int64_t columns, Unit* w) {
    if (kind == LinearKind::bf16) return decode_bf16(chunk, columns, w);
    if (kind == LinearKind::nvfp4_plain) return decode_nvfp4(chunk, columns, w);
    decode_fp8(chunk, columns, w);
}

}  // namespace ocrquant::OCRQUANT_ISA
