#pragma once

#include <cstdint>

namespace ocrquant {

// gate_row: elements from row to row.
struct SelectorWalkArgs {
    const float* logits;
    const uint16_t *gate, *predecessor, *successor;
    const int32_t* tokens;
    int32_t *out_tokens, *out_alone;
    int64_t rows, vocabulary, rank, block, top_k, gate_row;
};

}  // namespace ocrquant
