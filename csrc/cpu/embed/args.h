#pragma once

#include <cstdint>

namespace ocrquant {

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
};

}  // namespace ocrquant
