#pragma once

#include <cstdint>

namespace ocrquant {

// Rows of a table in panels: as many interleaved, in pairs of columns (kernels/linear/layout.py, bf16).
constexpr int64_t kEmbedPanel = 16;

struct EmbedArgs {
    const uint16_t* table;
    const int32_t* tokens;
    const uint16_t* images;  // or null
    const int32_t* image_index;  // or null
    uint16_t* out;
    int64_t rows;
    int64_t width;
    int64_t vocabulary;
    int64_t num_images;
    int64_t panel_stride;  // elements from one panel of the table to the next; 0: one row after another
};

}  // namespace ocrquant
