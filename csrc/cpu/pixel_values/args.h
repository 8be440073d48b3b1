#pragma once

#include <cstdint>

namespace ocrquant {

// codes [rows, channels, pixels], levels [channels, 256], out [rows, channels, frames, pixels]; all dense.
struct PixelValuesArgs {
    const uint8_t* codes;
    const uint16_t* levels;
    uint16_t* out;
    int64_t rows, channels, frames, pixels;
};

}  // namespace ocrquant
