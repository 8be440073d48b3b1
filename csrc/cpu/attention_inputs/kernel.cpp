// Head norms, rotary embedding and cache writes, one row at a time.
//
// Rounding points are those of the unfused operations: a norm rounds once to bf16, rotary rounds both products and their sum.
// Every loop is one over independent elements, or over sixteen sums with a fixed tree: the same bits on every instruction set.
#include "common/emit.h"
#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "attention_inputs/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

constexpr int64_t SUMS = 16;

float rounded(float x) { return from_bf16(to_bf16(x)); }

// Head norm and rotary of one head, as bf16 values in fp32; `x` has room for `dim` and rounds up to sixteen.
void prepare(const uint16_t* from, int64_t dim, const float* norm, float eps, const float* cos, const float* sin, int64_t half,
             float* x) {
    for (int64_t i = 0; i < dim; ++i) x[i] = from_bf16(from[i]);
    if (norm != nullptr) {
        float sums[SUMS] = {};
        for (int64_t i = dim; i % SUMS != 0; ++i) x[i] = 0.f;
        for (int64_t i = 0; i < dim; i += SUMS) {
            for (int64_t j = 0; j < SUMS; ++j) sums[j] += x[i + j] * x[i + j];
        }
        for (int64_t width = SUMS / 2; width > 0; width /= 2) {
            for (int64_t j = 0; j < width; ++j) sums[j] += sums[j + width];
        }
        const float factor = 1.f / __builtin_sqrtf(sums[0] / float(dim) + eps);
        for (int64_t i = 0; i < dim; ++i) x[i] = rounded(x[i] * factor * (1.f + norm[i]));
    }
    float *const first = x, *const second = x + half;
#pragma GCC ivdep
    for (int64_t j = 0; j < half; ++j) {
        const float low = first[j], high = second[j];
        first[j] = rounded(rounded(low * cos[j]) + rounded(-high * sin[j]));
        second[j] = rounded(rounded(high * cos[j]) + rounded(low * sin[j]));
    }
}

void write(const float* x, int64_t dim, uint16_t* to) {
    for (int64_t i = 0; i < dim; ++i) to[i] = uint16_t(bits_from_float(x[i]) >> 16);
}

void write(const float* x, int64_t dim, bool is_fp8, float scale, void* cache, int64_t at) {
    if (!is_fp8) return write(x, dim, static_cast<uint16_t*>(cache) + at);
    uint8_t* const to = static_cast<uint8_t*>(cache) + at;
    for (int64_t i = 0; i < dim; i += SUMS) {
        U32 codes[2];
        for (int j = 0; j < 2; ++j) {
            // A static scale saturates; NaN passes both bounds.
            const F32 value = load_wide(x + i + j * VEC) / scale;
            codes[j] = e4m3_codes(smaller(splat(E4M3_LARGEST), larger(splat(-E4M3_LARGEST), value)));
        }
        const U8x16 result = bytes(packed(codes[0], codes[1]));
        std::memcpy(to + i, &result, size_t(dim - i < SUMS ? dim - i : SUMS));
    }
}

#if defined(OCRQUANT_WITH_AVX512)

bool is_in_lines(const AttentionInputsArgs& a) { return a.dim % LINE_NUMBERS == 0 && a.half % SUMS == 0; }

__m256i* half_line(uint16_t* to) { return reinterpret_cast<__m256i*>(to); }

float squares(const uint16_t* x, int64_t dim) {
    __m512 sums = _mm512_setzero_ps();
    for (int64_t i = 0; i < dim; i += LINE_NUMBERS) {
        const Wide32 v = widen32(x + i);
        sums = sums + v.a * v.a;
        sums = sums + v.b * v.b;
    }
    return sum16(sums);
}

// As `prepare` and `write`: the norm in lines of 32, then rotary of sixteen pairs at a time, both parts of which are one line.
void prepare_lines(const uint16_t* from, int64_t dim, const float* norm, float factor, const float* cos, const float* sin, int64_t half,
                   uint16_t* to) {
    if (norm != nullptr) {
        for (int64_t i = 0; i < dim; i += LINE_NUMBERS) store32(to + i, widen32(from + i) * factor * (1.f + load32(norm + i)));
    } else {
        std::memcpy(to, from, size_t(dim) * sizeof(uint16_t));
    }
    for (int64_t j = 0; j < half; j += SUMS) {
        const __m512 low = widen16(to + j), high = widen16(to + half + j);
        const __m512 c = _mm512_loadu_ps(cos + j), s = _mm512_loadu_ps(sin + j);
        const __m512i turned = rounded32(rounded(Wide32{low * c, high * c}) + rounded(Wide32{-high * s, low * s}));
        _mm256_storeu_si256(half_line(to + j), _mm512_castsi512_si256(turned));
        _mm256_storeu_si256(half_line(to + half + j), _mm512_extracti64x4_epi64(turned, 1));
    }
}

// The factors of the norms of some heads; before the first head is written, lest each wait for its own.
void factors_of(const uint16_t* x, int64_t stride, int64_t heads, int64_t dim, const float* norm, float eps, float* factors) {
    for (int64_t h = 0; norm != nullptr && h < heads; ++h)
        factors[h] = 1.f / __builtin_sqrtf(squares(x + h * stride, dim) / float(dim) + eps);
}

// A head of keys or values, as it is or in codes.
void cache_lines(const uint16_t* x, int64_t dim, bool is_fp8, float scale, void* cache, int64_t at) {
    if (!is_fp8) {
        std::memcpy(static_cast<uint16_t*>(cache) + at, x, size_t(dim) * sizeof(uint16_t));
    } else if (!emit_wide::saturated_fp8(x, dim, scale, static_cast<uint8_t*>(cache) + at)) {
        float* const wide = static_cast<float*>(scratch(2, (dim + SUMS) * int64_t(sizeof(float))));
        for (int64_t i = 0; i < dim; ++i) wide[i] = from_bf16(x[i]);
        write(wide, dim, true, scale, cache, at);
    }
}

void row_in_lines(const AttentionInputsArgs& a, int64_t r) {
    const float *const cos = a.cos + r * a.half, *const sin = a.sin + r * a.half;
    const uint16_t *const q = a.q + r * a.q_row, *const keys = a.k + r * a.k_row;
    const bool is_cached = a.slot_mapping[r] >= 0;
    float* const q_factors = static_cast<float*>(scratch(3, (a.heads + a.kv_heads) * int64_t(sizeof(float))));
    float* const k_factors = q_factors + a.heads;
    factors_of(q, a.q_head, a.heads, a.dim, a.q_norm, a.eps, q_factors);
    if (is_cached) factors_of(keys, a.k_head, a.kv_heads, a.dim, a.k_norm, a.eps, k_factors);
    for (int64_t h = 0; h < a.heads; ++h)
        prepare_lines(q + h * a.q_head, a.dim, a.q_norm, q_factors[h], cos, sin, a.half, a.out_q + (r * a.heads + h) * a.dim);
    if (!is_cached) return;
    uint16_t* const k = static_cast<uint16_t*>(scratch(1, a.dim * int64_t(sizeof(uint16_t))));
    for (int64_t h = 0; h < a.kv_heads; ++h) {
        const int64_t at = (int64_t(a.slot_mapping[r]) * a.kv_heads + h) * a.dim;
        prepare_lines(keys + h * a.k_head, a.dim, a.k_norm, k_factors[h], cos, sin, a.half, k);
        cache_lines(k, a.dim, a.is_fp8, a.k_scale, a.k_cache, at);
        cache_lines(a.v + r * a.v_row + h * a.v_head, a.dim, a.is_fp8, a.v_scale, a.v_cache, at);
    }
}

#else

bool is_in_lines(const AttentionInputsArgs&) { return false; }
void row_in_lines(const AttentionInputsArgs&, int64_t) {}

#endif

}  // namespace

void attention_inputs(const AttentionInputsArgs& a) {
    const int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
    const bool in_lines = is_in_lines(a);
    parallel_for(a.rows, a.rows * width < 1 << 15, [&](int64_t r) {
        if (in_lines) return row_in_lines(a, r);
        float* const x = static_cast<float*>(scratch(1, (a.dim + SUMS) * int64_t(sizeof(float))));
        const float *const cos = a.cos + r * a.half, *const sin = a.sin + r * a.half;
        for (int64_t h = 0; h < a.heads; ++h) {
            prepare(a.q + r * a.q_row + h * a.q_head, a.dim, a.q_norm, a.eps, cos, sin, a.half, x);
            write(x, a.dim, a.out_q + (r * a.heads + h) * a.dim);
        }
        if (a.slot_mapping[r] < 0) return;
        for (int64_t h = 0; h < a.kv_heads; ++h) {
            const int64_t at = (int64_t(a.slot_mapping[r]) * a.kv_heads + h) * a.dim;
            prepare(a.k + r * a.k_row + h * a.k_head, a.dim, a.k_norm, a.eps, cos, sin, a.half, x);
            write(x, a.dim, a.is_fp8, a.k_scale, a.k_cache, at);
            const uint16_t* const v = a.v + r * a.v_row + h * a.v_head;
            for (int64_t i = 0; i < a.dim; ++i) x[i] = from_bf16(v[i]);
            write(x, a.dim, a.is_fp8, a.v_scale, a.v_cache, at);
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
