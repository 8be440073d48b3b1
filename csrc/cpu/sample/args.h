#pragma once

#include <cstdint>

namespace ocrquant {

// logits_row: elements from row to row.
struct SampleArgs {
    const float* logits;
    int64_t logits_row, rows, vocabulary;
    const float *temperature, *top_p;
    const int32_t *seed, *position;
    int32_t* out_tokens;
    float* out_gap;
};

}  // namespace ocrquant
