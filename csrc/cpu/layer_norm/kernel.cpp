// (x - mean) / sqrt(var + eps) * weight + bias in float32, rounded once; the variance is that of the centred row.
#include "common/produce.h"
#include "layer_norm/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

#if defined(OCRQUANT_WITH_AVX512)

void norm_row(const LayerNormArgs& a, const uint16_t* x, uint16_t* y) {
    const float count = float(a.width);
    Wide32 lanes{_mm512_setzero_ps(), _mm512_setzero_ps()};
    for_lines(a.width, [&](int64_t i, int64_t n) {
        const Wide32 v = columns(x + i, n);
        lanes = {_mm512_add_ps(lanes.a, v.a), _mm512_add_ps(lanes.b, v.b)};
    });
    const __m512 mean = _mm512_set1_ps(sum32(lanes) / count);
    lanes = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for_lines(a.width, [&](int64_t i, int64_t n) {
        const Wide32 v = columns(x + i, n);
        const __m512 p = _mm512_sub_ps(v.a, mean), q = _mm512_sub_ps(v.b, mean);
        Wide32 squares{_mm512_mul_ps(p, p), _mm512_mul_ps(q, q)};
        if (n < LINE_NUMBERS) squares = kept(squares, n);
        lanes = {_mm512_add_ps(lanes.a, squares.a), _mm512_add_ps(lanes.b, squares.b)};
    });
    const __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(sum32(lanes) / count + a.eps));
    const auto normed = [mean, scale](__m512 v, __m512 w, __m512 b) {
        return _mm512_add_ps(_mm512_mul_ps(_mm512_mul_ps(_mm512_sub_ps(v, mean), scale), w), b);
    };
    for_lines(a.width, [&](int64_t i, int64_t n) {
        const Wide32 v = columns(x + i, n), w = columns(a.weight + i, n), b = columns(a.bias + i, n);
        const Wide32 result{normed(v.a, w.a, b.a), normed(v.b, w.b, b.b)};
        n == LINE_NUMBERS ? store32(y + i, result) : store_some(y + i, result, n);
    });
}

#else

void norm_row(const LayerNormArgs& a, const uint16_t* x, uint16_t* y) {
    const float mean = sum(a.width, [](Turn v) { return v; }, x) / float(a.width);
    const float squares = sum(a.width, [mean](Turn v) { return (v - mean) * (v - mean); }, x);
    const float scale = 1.0f / __builtin_sqrtf(squares / float(a.width) + a.eps);
    map(y, a.width, [mean, scale](Turn v, Turn w, Turn b) { return (v - mean) * scale * w + b; }, x, a.weight, a.bias);
}

#endif

}  // namespace

void layer_norm(const LayerNormArgs& a) {
    for_rows(a.rows, a.width, [&](int64_t r) { norm_row(a, a.x + r * a.x_stride, a.out + r * a.out_stride); });
}

}  // namespace ocrquant::OCRQUANT_ISA
