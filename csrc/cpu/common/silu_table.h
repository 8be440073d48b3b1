// SiLU of a bf16 value, rounded to bf16, for all 65536 of them: built at the first call from `silu` of vec.h, whose bits it has.
#pragma once

#include "common/bf16_table.h"

namespace ocrquant::OCRQUANT_ISA {

const uint16_t* silu_table();

// y[i] = round(silu(x[i])); the two may be one.
inline void silu_row(const uint16_t* x, int64_t count, uint16_t* y) { look_up(silu_table(), x, count, y); }

}  // namespace ocrquant::OCRQUANT_ISA
