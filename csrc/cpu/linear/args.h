#pragma once

#include <cstdint>

namespace ocrquant {

// Which rows meet which weight; "plain" rows are bf16.
enum class LinearKind : int32_t { bf16 = 0, fp8 = 1, fp8_plain = 2, nvfp4 = 3, nvfp4_plain = 4 };
enum class Float : int32_t { none = 0, bf16 = 1, fp32 = 2 };

struct LinearArgs {
    LinearKind kind;
    const uint8_t* weight;       // panels, as ocrquant/kernels/linear/layout.py lays them out
    const float* channel_scale;  // [16 * panels], or null
    const uint8_t* x;            // [rows, in] bf16 or E4M3 codes, or [rows, in / 2] E2M1 codes
    const uint8_t* x_scale;      // fp8: float [rows]; nvfp4: E4M3 codes [rows, in / 16]; else null
    const float* encode_scale;   // nvfp4: [1]
    uint8_t* out;
    int64_t out_stride;  // elements from row to row
    Float out_type;
    const uint8_t* bias;
    Float bias_type;
    int64_t rows;
    int64_t out_features;
    int64_t in_features;
};

}  // namespace ocrquant
