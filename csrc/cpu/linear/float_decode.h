// A chunk of one panel as the float products read it: Unit [columns / UNIT][16].
#pragma once

#include "linear/float_rows.h"
#include "linear/nvfp4_blocks.h"

namespace ocrquant::OCRQUANT_ISA {

// Bytes of the first `columns` columns of a panel; `columns` is a multiple of CHUNK or the whole padded width.
inline int64_t panel_bytes(LinearKind kind, int64_t columns) {
    if (kind == LinearKind::bf16) return columns * PANEL * 2;
    if (kind == LinearKind::nvfp4 || kind == LinearKind::nvfp4_plain) return columns / BLOCK * (BLOCK_BYTES + PANEL);
    return columns * PANEL;
}

#if defined(OCRQUANT_WITH_AVX512)

// bf16 bits of every non-negative E4M3 code, high and low bytes apart.
struct E4m3Table {
    alignas(64) uint8_t high[128];
    alignas(64) uint8_t low[128];
};
inline const E4m3Table& e4m3_table() {
    static const E4m3Table table = [] {
        E4m3Table t;
        for (int code = 0; code < 128; ++code) {
            const uint32_t bits = bits_from_float(from_e4m3(uint8_t(code)));
            t.high[code] = uint8_t(bits >> 24);
            t.low[code] = uint8_t(bits >> 16);
        }
        return t;
    }();
    return table;
}

inline void decode_fp8(const uint8_t* codes, int64_t columns, Unit* w) {
    const E4m3Table& table = e4m3_table();
    const __m512i high0 = _mm512_load_si512(table.high), high1 = _mm512_load_si512(table.high + 64);
    const __m512i low0 = _mm512_load_si512(table.low), low1 = _mm512_load_si512(table.low + 64);
    const __m512i sign = _mm512_set1_epi8(char(0x80)), upper = _mm512_set1_epi16(short(0xff00));
    for (int64_t k = 0; k < columns; k += COLUMNS, codes += PANEL * COLUMNS, w += PANEL * COLUMNS / UNIT) {
        const __m512i v = _mm512_loadu_si512(codes);
        const __m512i index = _mm512_andnot_si512(sign, v);  // permutex2var reads seven bits; said for the reader
        const __m512i high = _mm512_or_si512(_mm512_permutex2var_epi8(high0, index, high1), _mm512_and_si512(v, sign));
        const __m512i low = _mm512_permutex2var_epi8(low0, index, low1);
        // Even bytes are the pairs of columns 0 and 1, odd ones those of columns 2 and 3.
        const __m512i even = _mm512_or_si512(_mm512_slli_epi16(high, 8), _mm512_andnot_si512(upper, low));
        const __m512i odd = _mm512_or_si512(_mm512_and_si512(high, upper), _mm512_srli_epi16(low, 8));
        _mm512_store_si512(w, even);
        _mm512_store_si512(w + PANEL, odd);
    }
}

inline void decode_nvfp4(const uint8_t* chunk, int64_t columns, Unit* w) {
    const __m512 values = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
    const int64_t blocks = columns / BLOCK;
    for (int64_t b = 0; b < blocks; ++b) {
        const Nvfp4Block block = nvfp4_block(chunk, b, blocks);
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block.scales));
        const __m512 half = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7));
        const __m512 scale = _mm512_mul_ps(half, _mm512_set1_ps(256.0f));
        for (int h = 0; h < 2; ++h) {
            const __m512i v = _mm512_loadu_si512(block.codes + 64 * h);
            for (int nibble = 0; nibble < 2; ++nibble)
                for (int pair = 0; pair < 2; ++pair) {
                    const int shift = 16 * pair + 4 * nibble;
                    const __m512i even = _mm512_srl_epi32(v, _mm_cvtsi32_si128(shift));
                    const __m512i odd = _mm512_srl_epi32(v, _mm_cvtsi32_si128(shift + 8));
                    const __m512 first = _mm512_mul_ps(_mm512_permutexvar_ps(even, values), scale);
                    const __m512 second = _mm512_mul_ps(_mm512_permutexvar_ps(odd, values), scale);
                    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
                    const __m512i high = _mm512_and_si512(_mm512_castps_si512(second), upper);
                    _mm512_store_si512(w + PANEL * (4 * h + 2 * nibble + pair), _mm512_or_si512(low, high));
                }
        }
        w += PANEL * BLOCK / UNIT;
    }
}

constexpr bool READS_BF16 = true;  // bf16 panels are pairs already
inline void decode_bf16(const uint8_t*, int64_t, Unit*) {}

#elif defined(OCRQUANT_WITH_AVX2)

inline __m256i load(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// Eight outputs by four columns in E4M3, as four vectors in 2**-120 of their values; see WEIGHT_DOWN.
struct Quad {
    __m256 column[4];
};
inline Quad quad_from_e4m3(__m256i codes) {
    const __m256i mask = _mm256_set1_epi16(short(0x87f0));
    const __m256i up = _mm256_setr_epi8(-1, 0, -1, 2, -1, 4, -1, 6, -1, 8, -1, 10, -1, 12, -1, 14,  //
                                        -1, 0, -1, 2, -1, 4, -1, 6, -1, 8, -1, 10, -1, 12, -1, 14);
    const __m256i lower = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,  //
                                           -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_shuffle_epi8(codes, up), 4), mask);
    const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(codes, 4), mask);
    // Shuffles in place of shifts: first-generation Zen shifts on one port only.
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
        const Quad first = quad_from_e4m3(load(codes)), second = quad_from_e4m3(load(codes + 32));
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
    const int64_t blocks = columns / BLOCK;
    for (int64_t b = 0; b < blocks; ++b, w += PANEL * BLOCK) {
        const Nvfp4Block block = nvfp4_block(chunk, b, blocks);
        for (int part = 0; part < 2; ++part) {
            const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.scales + 8 * part));
            const __m256 half = _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
            const __m256 scale = _mm256_mul_ps(half, _mm256_set1_ps(128.0f));  // 2**8 of the bits, 1/2 of the doubled codes
            for (int h = 0; h < 2; ++h) {
                const __m256i v = load(block.codes + 64 * h + 32 * part);
                const __m256i low = _mm256_shuffle_epi8(doubled, _mm256_and_si256(v, nibble));
                const __m256i high = _mm256_shuffle_epi8(doubled, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
                const auto column = [&](__m256i lanes, int k) {
                    const __m256 value = _mm256_cvtepi32_ps(_mm256_srai_epi32(lanes, 24));
                    _mm256_store_ps(w + PANEL * (8 * h + k) + 8 * part, _mm256_mul_ps(value, scale));
                };
                column(_mm256_slli_epi32(low, 24), 0);
                column(_mm256_slli_epi32(low, 16), 1);
                column(_mm256_slli_epi32(low, 8), 2);
                column(low, 3);
                column(_mm256_slli_epi32(high, 24), 4);
                column(_mm256_slli_epi32(high, 16), 5);
                column(_mm256_slli_epi32(high, 8), 6);
                column(high, 7);
            }
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
        const Nvfp4Block block = nvfp4_block(chunk, k / BLOCK, blocks);
        const int64_t half = k % BLOCK / 8, shift = k % 8 / 4 * 4;
        for (int o = 0; o < PANEL; ++o) {
            const int code = block.codes[64 * half + 4 * o + k % 4] >> shift & 15;
            w[k * PANEL + o] = values[code] * from_e4m3(block.scales[o]);
        }
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
