// Where codes and scales of NVFP4 weights lie inside a panel, and how a group of scales is read.
#pragma once

#include "linear/plan.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t BLOCK = 16;                       // columns of one scale
constexpr int64_t BLOCK_BYTES = PANEL * BLOCK / 2;  // codes of a block: [2][16][4], see layout.py
constexpr int64_t GROUP = 4;                        // blocks whose scales lie together
constexpr int64_t SCALE_BYTES = PANEL * GROUP;      // [16][4]
constexpr int64_t GROUP_BYTES = GROUP * BLOCK_BYTES + SCALE_BYTES;

inline int64_t nvfp4_bytes(int64_t blocks) { return blocks * BLOCK_BYTES + ceil_div(blocks, GROUP) * SCALE_BYTES; }

// The code of output `o` and column `k` of a block; of eight columns even ones are in the lower word, odd ones in the upper.
inline int nvfp4_code(const uint8_t* block, int64_t o, int64_t k) {
    const int64_t nibble = k % 2 * 4 + k % 8 / 2;
    return block[k / 8 * 64 + o * 4 + nibble / 2] >> nibble % 2 * 4 & 15;
}

// Up to four blocks with their scales, from `begin` on, which is at a border of groups.
struct Nvfp4Group {
    const uint8_t* codes;
    const uint8_t* scales;
    int64_t blocks;
};
inline Nvfp4Group nvfp4_group(const uint8_t* begin, int64_t group, int64_t blocks) {
    const int64_t size = smaller(GROUP, blocks - group * GROUP);
    const uint8_t* const codes = begin + group * GROUP_BYTES;
    return {codes, codes + size * BLOCK_BYTES, size};
}

// Scales are read as bits moved into place, which is 2**-120 of their values; rows carry the rest.
constexpr float SCALE_UP = 0x1p120f;

#if defined(OCRQUANT_WITH_AVX512)
struct Scales {
    __m512i bits;  // a word an output
    explicit Scales(const uint8_t* from) : bits(_mm512_loadu_si512(from)) {}
    __m512 of(int block) const {
        const __m512i moved = _mm512_rolv_epi32(bits, _mm512_set1_epi32((20 - 8 * block) & 31));
        return _mm512_castsi512_ps(_mm512_and_si512(moved, _mm512_set1_epi32(0x07f00000)));
    }
};
#elif defined(OCRQUANT_WITH_AVX2)
struct Scales {
    __m256i low, high;
    explicit Scales(const uint8_t* from) : low(load(from)), high(load(from + 32)) {}
    static __m256 move(__m256i bits, int block) {
        const __m256i moved = block == 3 ? _mm256_srli_epi32(bits, 4) : _mm256_slli_epi32(bits, 20 - 8 * block);
        return _mm256_castsi256_ps(_mm256_and_si256(moved, _mm256_set1_epi32(0x07f00000)));
    }
};
#endif

}  // namespace ocrquant::OCRQUANT_ISA
