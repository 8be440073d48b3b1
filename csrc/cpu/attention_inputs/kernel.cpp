// Head norms, rotary embedding and cache writes, one row at a time.
//
// Rounding points are those of the unfused operations: a norm rounds once to bf16, rotary rounds both products and their sum.
// Every loop is one over independent elements, or over sixteen sums with a fixed tree: the same bits on every instruction set.
#include "common/emit.h"
#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "attention_inputs/args.h"

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

}  // namespace

void attention_inputs(const AttentionInputsArgs& a) {
    const int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
    parallel_for(a.rows, a.rows * width < 1 << 15, [&](int64_t r) {
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
