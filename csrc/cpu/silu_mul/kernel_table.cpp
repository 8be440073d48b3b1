#include "common/rows.h"
#include "common/silu_table.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

constexpr int VALUES = 1 << 16;

struct SiluTable {
    uint16_t of[VALUES];

    SiluTable() {
        for (int i = 0; i < VALUES; ++i) of[i] = uint16_t(i);
        map(of, VALUES, [](Turn x) { return silu(x); }, of);
    }
};

}  // namespace

const uint16_t* silu_table() {
    static const SiluTable table;
    return table.of;
}

}  // namespace ocrquant::OCRQUANT_ISA
