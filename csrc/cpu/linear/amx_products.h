// NVFP4 in bf16: a code times its scale is exact there (two bits times four), and one lookup gives it.
#pragma once

#include "linear/amx.h"
#include "linear/nvfp4_blocks.h"

namespace ocrquant::OCRQUANT_ISA {

// Every E2M1 code times every E4M3 scale, in bf16.
struct ProductTable {
    alignas(64) uint16_t products[256][16];
};
inline const ProductTable& product_table() {
    static const ProductTable table = [] {
        static constexpr float values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
        ProductTable t;
        for (int scale = 0; scale < 256; ++scale)
            for (int code = 0; code < 16; ++code)
                t.products[scale][code] = uint16_t(bits_from_float(values[code] * from_e4m3(uint8_t(scale))) >> 16);
        return t;
    }();
    return table;
}

// Products of the first 16 words' lowest four bits with one scale; zeros behind them. A lookup reads one more bit, which chooses
// between equals.
inline __m512i products_in(const ProductTable& table, uint8_t scale) {
    return _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(table.products[scale])));
}
inline __m512i products(const ProductTable& table, __m512i codes, uint8_t scale) {
    return _mm512_maskz_permutexvar_epi16(0xffff, codes, products_in(table, scale));
}

// The same with another scale for the second 16 words.
inline __m512i pair_of_products(const ProductTable& table, __m512i codes, uint8_t first, uint8_t second) {
    return _mm512_mask_permutexvar_epi16(products(table, codes, first), 0xffff0000, codes, products_in(table, second));
}

}  // namespace ocrquant::OCRQUANT_ISA
