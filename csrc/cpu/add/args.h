#pragma once

#include <cstdint>

namespace ocrquant {

struct AddArgs {
    const uint16_t* a;
    const uint16_t* b;
    uint16_t* out;
    int64_t count;
};

}  // namespace ocrquant
