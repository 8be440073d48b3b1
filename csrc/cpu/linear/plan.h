// How a product is cut into tasks, and what becomes of its sums. Shared by the float and the integer products.
//
// A task is a block of rows times a group of panels. Every sum is one chain over the columns in order, kept in fp32, so a
// result depends neither on the cut nor on the threads.
#pragma once

#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "common/vec.h"
#include "linear/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/bf16_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t PANEL = 16;
constexpr int64_t CHUNK = 256;  // columns that are decoded at once

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

#if !defined(OCRQUANT_WITH_PLAIN)
inline __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void prefetch(const void* from) { _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T0); }
#endif

// Subnormal operands and results count, whatever the calling thread has set.
class ExactSubnormals {
  public:
#if defined(OCRQUANT_WITH_PLAIN)
    ExactSubnormals() {}
#else
    ExactSubnormals() : before_(_mm_getcsr()) {
        if (before_ & FLUSH) _mm_setcsr(before_ & ~FLUSH);
    }
    ~ExactSubnormals() {
        if (before_ & FLUSH) _mm_setcsr(before_);
    }

  private:
    static constexpr unsigned FLUSH = 0x8040;
    unsigned before_;
#endif
};

// Whether a product is done before a sleeping thread would have woken: at about 10 GB/s and 20 G products a second, 30 us.
inline bool is_small(const LinearArgs& args, int64_t panel_bytes) {
    const int64_t panels = ceil_div(args.out_features, PANEL);
    return panels * panel_bytes < 300000 && args.rows * args.in_features * args.out_features < 600000;
}

// Panels of a task: enough of them to be worth a task, few enough to share the work out; a multiple of `step`.
inline int64_t panels_of_task(int64_t panels, int64_t panel_bytes, int64_t row_blocks, int64_t step, int64_t most) {
    const int64_t shared = ceil_div(panels * row_blocks, 6 * int64_t(num_threads()));
    const int64_t worth = ceil_div(32768, panel_bytes);
    const int64_t count = smaller(larger(smaller(shared, 64), worth), most);
    return ceil_div(count, step) * step;
}

// One row of one panel: `sums` in fp32, scaled, biased, rounded and written. `row_factor` is exact, a power of two.
#if defined(OCRQUANT_WITH_AVX512)

inline void finish(const LinearArgs& args, __m512 y, int64_t row, int64_t panel, float row_factor, float alpha) {
    const int64_t first = panel * PANEL, count = smaller(PANEL, args.out_features - first);
    const __mmask16 some = __mmask16((1u << count) - 1);
    if (args.kind != LinearKind::bf16) {
        const __m512 channel = _mm512_loadu_ps(args.channel_scale + first);
        if (args.kind == LinearKind::nvfp4) {
            y = _mm512_mul_ps(y, _mm512_mul_ps(channel, _mm512_set1_ps(alpha)));
        } else {
            y = _mm512_mul_ps(y, _mm512_set1_ps(row_factor));
            if (args.kind == LinearKind::fp8) y = _mm512_mul_ps(y, _mm512_set1_ps(reinterpret_cast<const float*>(args.x_scale)[row]));
            y = _mm512_mul_ps(y, channel);
        }
    }
    if (args.bias_type == Float::fp32) {
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(some, reinterpret_cast<const float*>(args.bias) + first));
    } else if (args.bias_type == Float::bf16) {
        const __m256i bias = _mm256_maskz_loadu_epi16(some, reinterpret_cast<const uint16_t*>(args.bias) + first);
        y = _mm512_add_ps(y, widened16(bias));
    }
    const int64_t offset = row * args.out_stride + first;
    if (args.out_type == Float::fp32)
        _mm512_mask_storeu_ps(reinterpret_cast<float*>(args.out) + offset, some, y);
    else
        _mm256_mask_storeu_epi16(reinterpret_cast<uint16_t*>(args.out) + offset, some, rounded16(y));
}
inline void finish(const LinearArgs& args, const float* sums, int64_t row, int64_t panel, float row_factor, float alpha) {
    finish(args, _mm512_loadu_ps(sums), row, panel, row_factor, alpha);
}

#else

// The results of one row of one panel. Nearly all panels are full, and a copy of a size that is known is two moves where one of
// any size is a call: 16 rows times [1024, 192] took 38 us with calls, more than half of it here (Xeon family 6 model 207,
// 2026-11-30).
template <class Element>
inline void write_panel(const Element* from, int64_t count, Element* to) {
    if (count == PANEL) {
        std::memcpy(to, from, PANEL * sizeof(Element));
    } else {
        std::memcpy(to, from, size_t(count) * sizeof(Element));
    }
}

inline void finish(const LinearArgs& args, const float* sums, int64_t row, int64_t panel, float row_factor, float alpha) {
    float y[PANEL];
    const int64_t first = panel * PANEL, count = smaller(PANEL, args.out_features - first);
    const float* const channel = args.kind == LinearKind::bf16 ? nullptr : args.channel_scale + first;
    for (int i = 0; i < PANEL; ++i) y[i] = sums[i];
    if (args.kind == LinearKind::fp8) {
        const float token = reinterpret_cast<const float*>(args.x_scale)[row];
        for (int i = 0; i < PANEL; ++i) y[i] = y[i] * row_factor * token * channel[i];
    } else if (args.kind == LinearKind::nvfp4) {
        for (int i = 0; i < PANEL; ++i) y[i] *= channel[i] * alpha;
    } else if (args.kind != LinearKind::bf16) {
        for (int i = 0; i < PANEL; ++i) y[i] = y[i] * row_factor * channel[i];
    }
    if (args.bias_type == Float::fp32) {
        const float* const bias = reinterpret_cast<const float*>(args.bias) + first;
        for (int64_t i = 0; i < count; ++i) y[i] += bias[i];
    } else if (args.bias_type == Float::bf16) {
        const uint16_t* const bias = reinterpret_cast<const uint16_t*>(args.bias) + first;
        for (int64_t i = 0; i < count; ++i) y[i] += from_bf16(bias[i]);
    }
    const int64_t offset = row * args.out_stride + first;
    if (args.out_type == Float::fp32) {
        write_panel(y, count, reinterpret_cast<float*>(args.out) + offset);
    } else {
        const U16x16 rounded = narrow(load_as<F32>(y), load_as<F32>(y + VEC));
        write_panel(reinterpret_cast<const uint16_t*>(&rounded), count, reinterpret_cast<uint16_t*>(args.out) + offset);
    }
}

#endif

// With AMX, rows in NVFP4 codes up to which integers are as fast as tiles, which give the same bits.
constexpr int64_t FEW_ROWS = 4;

void linear_float(const LinearArgs& args);
void linear_nvfp4(const LinearArgs& args);
void linear_tiles(const LinearArgs& args);

}  // namespace ocrquant::OCRQUANT_ISA
