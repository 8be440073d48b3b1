// The random numbers of sampling: Philox4x32-10 (Salmon et al., SC 2011), as ocrquant/kernels/sample/stream.py has it.
#pragma once

#include <cstdint>

namespace ocrquant {

// What a number is drawn for; each purpose has a stream of its own.
constexpr uint32_t PURPOSE_TOKEN = 0;

// A number in [0, 1) with 53 random bits, from nothing but its arguments.
static inline double uniform(int32_t seed_low, int32_t seed_high, int32_t position, uint32_t purpose) {
    uint32_t a = uint32_t(position), b = purpose, c = 0, d = 0, low = uint32_t(seed_low), high = uint32_t(seed_high);
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t(a) * 0xD2511F53u, second = uint64_t(c) * 0xCD9E8D57u;
        a = uint32_t(second >> 32) ^ b ^ low;
        b = uint32_t(second);
        c = uint32_t(first >> 32) ^ d ^ high;
        d = uint32_t(first);
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return (double(a >> 5) * 0x1p26 + double(b >> 6)) * 0x1p-53;
}

}  // namespace ocrquant
