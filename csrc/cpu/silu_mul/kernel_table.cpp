#include "common/silu_table.h"

namespace ocrquant::OCRQUANT_ISA {

const uint16_t* silu_table() {
    static const Bf16Table table([](Turn x) { return silu(x); });
    return table.of;
}

}  // namespace ocrquant::OCRQUANT_ISA
