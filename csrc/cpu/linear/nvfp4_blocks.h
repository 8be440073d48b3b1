// Where codes and scales of NVFP4 weights lie inside a panel.
#pragma once

#include "linear/plan.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t BLOCK = 16;                        // columns of one scale
constexpr int64_t BLOCK_BYTES = PANEL * BLOCK / 2;   // codes of a block of a panel
constexpr int64_t GROUP = 4;                         // blocks whose scales lie together
constexpr int64_t GROUP_BYTES = GROUP * (BLOCK_BYTES + PANEL);

struct Nvfp4Block {
    const uint8_t* codes;   // [2][16][4]: byte j of half h holds columns 8h + j (low) and 8h + 4 + j (high)
    const uint8_t* scales;  // [16]
};

// Block `b` of the `blocks` ones that begin at a border of groups.
inline Nvfp4Block nvfp4_block(const uint8_t* begin, int64_t b, int64_t blocks) {
    const int64_t group = b / GROUP, inside = b % GROUP, size = smaller(GROUP, blocks - group * GROUP);
    const uint8_t* const base = begin + group * GROUP_BYTES;
    return {base + inside * BLOCK_BYTES, base + size * BLOCK_BYTES + inside * PANEL};
}

}  // namespace ocrquant::OCRQUANT_ISA
