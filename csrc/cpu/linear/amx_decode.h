// Weights as AMX reads them: a step of 32 columns of one panel becomes a tile of bf16, [16][16][2].
//
// bf16 panels are tiles already, and FP8 and NVFP4 ones become such.
#pragma once

#include "linear/amx.h"
#include "linear/amx_nvfp4.h"
#include "linear/float_decode.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t TILE_BYTES = PANEL * TILE_COLUMNS * 2;

// What a tile of weights comes from: codes that are decoded first, bf16 from memory, or what the tile of rows before has read.
enum class Source { fp8, fp8_plain, nvfp4, nvfp4_plain, bf16, again };

// Bytes of 32 columns of a panel; of NVFP4 half of a group.
constexpr int64_t step_bytes(Source source) {
    return source == Source::bf16 ? TILE_BYTES : source == Source::nvfp4 || source == Source::nvfp4_plain ? GROUP_BYTES / 2 : TILE_BYTES / 2;
}

// Step `step` of a panel's chunk of `columns` columns, which begins at `w`; the last step may be one of fewer columns, with zeros
// behind them. Not inlined: some hundred instructions, which would stand in the code of every number of panels.
template <Source SOURCE>
__attribute__((noinline)) void decode_step(const uint8_t* w, int64_t step, int64_t columns, int64_t ahead, uint8_t* tile) {
    constexpr int64_t bytes = step_bytes(SOURCE);
#pragma GCC unroll 16
    for (int64_t byte = 0; byte < bytes; byte += LINE) prefetch(w + step * bytes + ahead + byte);
    if constexpr (SOURCE == Source::nvfp4 || SOURCE == Source::nvfp4_plain) {
        decode_nvfp4_pair<SOURCE == Source::nvfp4_plain>(nvfp4_group(w, step / 2, columns / BLOCK), step % 2 * 2, tile);
    } else if constexpr (SOURCE != Source::bf16) {
        const int64_t count = smaller(TILE_COLUMNS, columns - step * TILE_COLUMNS);
        if (count < TILE_COLUMNS) std::memset(tile, 0, size_t(TILE_BYTES));
        decode_fp8<SOURCE == Source::fp8 ? FEWER_BINADES : 0>(w + step * bytes, count, reinterpret_cast<Unit*>(tile));
    }
}

}  // namespace ocrquant::OCRQUANT_ISA
