// Rotary embedding of whole heads, in place: products and sums in fp32, one rounding to bf16.
#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "vision_rope/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/bf16_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

void rotate(uint16_t* head, const float* cos, const float* sin, int64_t half) {
    uint16_t *const first = head, *const second = head + half;
    int64_t j = 0;
#if defined(OCRQUANT_WITH_AVX512)
    const auto minus = [](__m512 a, __m512 c, __m512 b, __m512 s) { return _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)); };
    const auto plus = [](__m512 a, __m512 c, __m512 b, __m512 s) { return _mm512_add_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)); };
    for (; j + LINE_NUMBERS <= half; j += LINE_NUMBERS) {
        const Wide32 low = widen32(first + j), high = widen32(second + j), c = load32(cos + j), s = load32(sin + j);
        store32(first + j, {minus(low.a, c.a, high.a, s.a), minus(low.b, c.b, high.b, s.b)});
        store32(second + j, {plus(high.a, c.a, low.a, s.a), plus(high.b, c.b, low.b, s.b)});
    }
#endif
#pragma GCC ivdep
    for (; j < half; ++j) {
        const float low = from_bf16(first[j]), high = from_bf16(second[j]);
        first[j] = to_bf16(low * cos[j] + -high * sin[j]);
        second[j] = to_bf16(high * cos[j] + low * sin[j]);
    }
}

}  // namespace

void vision_rope(const VisionRopeArgs& args) {
    constexpr int64_t CHUNK = 16;
    const int64_t half = args.dim / 2, chunks = (args.rows + CHUNK - 1) / CHUNK;
    parallel_for(chunks, args.rows * args.heads * args.dim < 1 << 15, [&](int64_t chunk) {
        const int64_t last = chunk * CHUNK + CHUNK < args.rows ? chunk * CHUNK + CHUNK : args.rows;
        for (int64_t r = chunk * CHUNK; r < last; ++r) {
            for (int64_t h = 0; h < args.heads; ++h) {
                rotate(args.q + r * args.q_row + h * args.q_head, args.cos + r * half, args.sin + r * half, half);
                rotate(args.k + r * args.k_row + h * args.k_head, args.cos + r * half, args.sin + r * half, half);
            }
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
