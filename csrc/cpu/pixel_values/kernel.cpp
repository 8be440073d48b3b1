// Values of 8-bit pixels by channel, one frame looked up and the others copied from it.
#include <cstring>

#include "common/isa.h"
#include "common/pool.h"
#include "pixel_values/args.h"

namespace ocrquant::OCRQUANT_ISA {

void pixel_values(const PixelValuesArgs& a) {
    constexpr int64_t CHUNK = 16;  // rows
    const int64_t plane = a.frames * a.pixels;
    parallel_for((a.rows + CHUNK - 1) / CHUNK, a.rows * a.channels * plane < 1 << 17, [&](int64_t chunk) {
        const int64_t last = (chunk + 1) * CHUNK < a.rows ? (chunk + 1) * CHUNK : a.rows;
        for (int64_t at = chunk * CHUNK * a.channels; at < last * a.channels; ++at) {
            const uint16_t* const level = a.levels + at % a.channels * 256;
            const uint8_t* const code = a.codes + at * a.pixels;
            uint16_t* const frame = a.out + at * plane;
            for (int64_t i = 0; i < a.pixels; ++i) frame[i] = level[code[i]];
            for (int64_t f = 1; f < a.frames; ++f) std::memcpy(frame + f * a.pixels, frame, size_t(a.pixels) * sizeof(uint16_t));
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
