// Sums of a few rows times a few panels over one chunk of columns, kept in registers.
//
// Every (row, output) is one chain over the columns in order, begun at zero and added to its sum `c` at the end of the chunk.
#pragma once

#include "linear/float_decode.h"

namespace ocrquant::OCRQUANT_ISA {

// A tile: rows at x + r * CHUNK_UNITS; panel p at w + p * w_stride; sums of row r and panel p at c + p * c_stride + r * PANEL.

#if defined(OCRQUANT_WITH_AVX512)

constexpr int TILE_ROWS = 8;

template <int ROWS, int PANELS>
void tile(const Unit* x, const Unit* w, int64_t w_stride, int64_t units, float* c, int64_t c_stride) {
    __m512 sum[ROWS][PANELS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) sum[r][p] = _mm512_setzero_ps();
    for (int64_t u = 0; u < units; ++u) {
        __m512bh weights[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) weights[p] = (__m512bh)_mm512_loadu_si512(w + p * w_stride + u * PANEL);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const __m512bh value = (__m512bh)_mm512_set1_epi32(int(x[r * CHUNK_UNITS + u]));
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; ++p) sum[r][p] = _mm512_dpbf16_ps(sum[r][p], value, weights[p]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) {
            float* const to = c + p * c_stride + r * PANEL;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum[r][p]));
        }
}

#elif defined(OCRQUANT_WITH_AVX2)

constexpr int TILE_ROWS = 6;

struct Sums {
    __m256 low, high;
};

inline void add_sums(float* to, const Sums& sums) {
    _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), sums.low));
    _mm256_storeu_ps(to + 8, _mm256_add_ps(_mm256_loadu_ps(to + 8), sums.high));
}

template <int ROWS, int PANELS>
void tile(const float* x, const float* w, int64_t w_stride, int64_t units, float* c, int64_t c_stride) {
    Sums sum[ROWS][PANELS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) sum[r][p] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t u = 0; u < units; ++u) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) {
            const __m256 low = _mm256_loadu_ps(w + p * w_stride + u * PANEL);
            const __m256 high = _mm256_loadu_ps(w + p * w_stride + u * PANEL + 8);
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; ++r) {
                const __m256 value = _mm256_broadcast_ss(x + r * CHUNK_UNITS + u);
                sum[r][p].low = _mm256_fmadd_ps(value, low, sum[r][p].low);
                sum[r][p].high = _mm256_fmadd_ps(value, high, sum[r][p].high);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) add_sums(c + p * c_stride + r * PANEL, sum[r][p]);
}

// The same sums straight from packed weights, for as few rows as leave no reuse to a decoded chunk. `w_stride` in bytes.
constexpr int64_t AHEAD = 512;  // bytes that a panel is fetched ahead

template <int ROWS, int PANELS>
void stream_fp8(const float* x, const uint8_t* w, int64_t w_stride, int64_t columns, float* c, int64_t c_stride) {
    __m256 sum[PANELS][2][ROWS];
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) sum[p][half][r] = _mm256_setzero_ps();
    for (int64_t k = 0; k < columns; k += COLUMNS, w += PANEL * COLUMNS, x += COLUMNS) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) {
            _mm_prefetch(reinterpret_cast<const char*>(w + p * w_stride + AHEAD), _MM_HINT_T0);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const Quad quad = quad_from_e4m3(w + p * w_stride + 32 * half);
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
                    for (int r = 0; r < ROWS; ++r)
                        sum[p][half][r] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + r * CHUNK + i), quad.column[i], sum[p][half][r]);
            }
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) add_sums(c + p * c_stride + r * PANEL, {sum[p][0][r], sum[p][1][r]});
}

template <int ROWS, int PANELS>
void stream_bf16(const float* x, const uint8_t* w, int64_t w_stride, int64_t columns, float* c, int64_t c_stride) {
    __m256 sum[PANELS][2][ROWS];
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) sum[p][half][r] = _mm256_setzero_ps();
    for (int64_t k = 0; k < columns; k += 2, w += 4 * PANEL, x += 2) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) {
            _mm_prefetch(reinterpret_cast<const char*>(w + p * w_stride + AHEAD), _MM_HINT_T0);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const __m256i pairs = load(w + p * w_stride + 32 * half);
                const __m256 first = lower_bf16(pairs), second = upper_bf16(pairs);
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; ++r) {
                    const float* const row = x + r * CHUNK;
                    sum[p][half][r] = _mm256_fmadd_ps(_mm256_broadcast_ss(row), first, sum[p][half][r]);
                    sum[p][half][r] = _mm256_fmadd_ps(_mm256_broadcast_ss(row + 1), second, sum[p][half][r]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) add_sums(c + p * c_stride + r * PANEL, {sum[p][0][r], sum[p][1][r]});
}

#else

constexpr int TILE_ROWS = 4;

template <int ROWS, int PANELS>
void tile(const float* x, const float* w, int64_t w_stride, int64_t units, float* c, int64_t c_stride) {
    for (int p = 0; p < PANELS; ++p) {
        float sum[ROWS][PANEL] = {};
        for (int64_t u = 0; u < units; ++u)
            for (int r = 0; r < ROWS; ++r)
                for (int o = 0; o < PANEL; ++o) sum[r][o] += x[r * CHUNK_UNITS + u] * w[p * w_stride + u * PANEL + o];
        for (int r = 0; r < ROWS; ++r)
            for (int o = 0; o < PANEL; ++o) c[p * c_stride + r * PANEL + o] += sum[r][o];
    }
}

#endif

}  // namespace ocrquant::OCRQUANT_ISA
