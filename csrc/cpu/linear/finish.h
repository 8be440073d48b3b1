// What becomes of sums with AVX-512 and AMX: scaled, biased, rounded and written, two panels at a time where both are full.
#pragma once

#include "linear/plan.h"

namespace ocrquant::OCRQUANT_ISA {

// Sums of some rows: a panel's are [rows][16].
struct Sums {
    const float* first;
    int64_t panel;  // floats from panel to panel
    int64_t rows;   // those of zeros not counted
    int64_t row;    // the first one's number in the result
    const float* factors;  // [rows], what they are multiplied by before the outputs' scale; not read for bf16
};

// Scale and bias of a panel's outputs.
struct Outputs {
    __m512 scale, bias;
};

inline Outputs outputs_of(const LinearArgs& args, int64_t panel, float alpha) {
    const int64_t first = panel * PANEL;
    const __mmask16 some = __mmask16((1u << smaller(PANEL, args.out_features - first)) - 1);
    Outputs outputs{_mm512_set1_ps(1.0f), _mm512_setzero_ps()};
    if (args.kind != LinearKind::bf16) outputs.scale = _mm512_mul_ps(_mm512_loadu_ps(args.channel_scale + first), _mm512_set1_ps(alpha));
    if (args.bias_type == Float::fp32) outputs.bias = _mm512_maskz_loadu_ps(some, reinterpret_cast<const float*>(args.bias) + first);
    if (args.bias_type == Float::bf16) {
        const __m256i bias = _mm256_maskz_loadu_epi16(some, reinterpret_cast<const uint16_t*>(args.bias) + first);
        outputs.bias = widened16(bias);
    }
    return outputs;
}

template <bool SCALED, bool BIASED>
inline __m512 result(const float* sums, float factor, const Outputs& outputs) {
    __m512 y = _mm512_loadu_ps(sums);
    if constexpr (SCALED) y = _mm512_mul_ps(_mm512_mul_ps(y, _mm512_set1_ps(factor)), outputs.scale);
    if constexpr (BIASED) y = _mm512_add_ps(y, outputs.bias);
    return y;
}

// One panel, which may be the last, narrower one, in either type.
template <bool SCALED, bool BIASED>
void finish_one(const LinearArgs& args, const Sums& sums, int64_t at, int64_t panel, float alpha) {
    const Outputs outputs = outputs_of(args, panel, alpha);
    const int64_t first = panel * PANEL;
    const __mmask16 some = __mmask16((1u << smaller(PANEL, args.out_features - first)) - 1);
    for (int64_t r = 0; r < sums.rows; ++r) {
        const __m512 y = result<SCALED, BIASED>(sums.first + at * sums.panel + r * PANEL, SCALED ? sums.factors[r] : 1.0f, outputs);
        const int64_t offset = (sums.row + r) * args.out_stride + first;
        if (args.out_type == Float::fp32)
            _mm512_mask_storeu_ps(reinterpret_cast<float*>(args.out) + offset, some, y);
        else
            _mm256_mask_storeu_epi16(reinterpret_cast<uint16_t*>(args.out) + offset, some, rounded16(y));
    }
}

// Two full panels in bf16. The instruction that rounds takes subnormals for zero and keeps the bits of a NaN: says whether there
// were such values, which `finish_one` writes as they should be.
template <bool SCALED, bool BIASED>
bool finish_two(const LinearArgs& args, const Sums& sums, int64_t at, int64_t panel, float alpha) {
    constexpr int SPECIAL = 0x01 | 0x20 | 0x80;  // quiet NaN, subnormal, signalling NaN
    const Outputs low = outputs_of(args, panel, alpha), high = outputs_of(args, panel + 1, alpha);
    const float* const from = sums.first + at * sums.panel;
    uint16_t* const to = reinterpret_cast<uint16_t*>(args.out) + sums.row * args.out_stride + panel * PANEL;
    __mmask16 special = 0;
    for (int64_t r = 0; r < sums.rows; ++r) {
        const float factor = SCALED ? sums.factors[r] : 1.0f;
        const __m512 first = result<SCALED, BIASED>(from + r * PANEL, factor, low);
        const __m512 second = result<SCALED, BIASED>(from + sums.panel + r * PANEL, factor, high);
        special |= _mm512_fpclass_ps_mask(first, SPECIAL) | _mm512_fpclass_ps_mask(second, SPECIAL);
        const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
        std::memcpy(to + r * args.out_stride, &both, sizeof(both));
    }
    return special != 0;
}

template <bool SCALED, bool BIASED>
void finish_panels(const LinearArgs& args, const Sums& sums, int64_t first_panel, int64_t panels, float alpha) {
    const int64_t full = args.out_type == Float::bf16 ? smaller(panels, args.out_features / PANEL - first_panel) : 0;
    for (int64_t p = 0; p < panels;) {
        const int64_t count = p + 2 <= full ? 2 : 1;
        if (count == 1 || finish_two<SCALED, BIASED>(args, sums, p, first_panel + p, alpha))
            for (int64_t i = p; i < p + count; ++i) finish_one<SCALED, BIASED>(args, sums, i, first_panel + i, alpha);
        p += count;
    }
}

// All of some panels; `alpha` is what the outputs' scales are multiplied by.
inline void finish_panels(const LinearArgs& args, const Sums& sums, int64_t first_panel, int64_t panels, float alpha) {
    const bool is_scaled = args.kind != LinearKind::bf16, is_biased = args.bias_type != Float::none;
    const auto finish = is_scaled ? is_biased ? finish_panels<true, true> : finish_panels<true, false>
                                  : is_biased ? finish_panels<false, true> : finish_panels<false, false>;
    finish(args, sums, first_panel, panels, alpha);
}

}  // namespace ocrquant::OCRQUANT_ISA
