#pragma once

#include <cstdint>

namespace ocrquant {

struct ReadMemoryArgs {
    const uint64_t* data;
    int64_t words;
    uint64_t* out;
};

}  // namespace ocrquant
