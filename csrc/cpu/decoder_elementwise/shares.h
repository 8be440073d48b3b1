// Sums over all rows of a batch, for the gradients of weights. Include from kernel files.
#pragma once

#include "common/produce.h"

namespace ocrquant::OCRQUANT_ISA {

// to[width] = the sum of what body(first, last, share) adds to its share for the items first..last of `count`, `least` or
// more in each call but the last. The cut depends on count alone and shares are added in order, so that the number of threads
// changes no bit. Takes the scratch slot 0 of the caller.
template <class Body>
inline void sum_of_shares(int64_t count, int64_t least, int64_t width, bool serial, float* to, Body body) {
    constexpr int64_t SHARES = 64;
    const int64_t even = (count + SHARES - 1) / SHARES, step = even < least ? least : even;
    const int64_t shares = (count + step - 1) / step;
    float* const all = static_cast<float*>(scratch(0, (shares + 1) * width * int64_t(sizeof(float))));
    parallel_for(shares, serial, [&](int64_t i) {
        float* const share = all + i * width;
        std::memset(share, 0, size_t(width) * sizeof(float));
        body(i * step, (i + 1) * step < count ? (i + 1) * step : count, share);
    });
    std::memset(to, 0, size_t(width) * sizeof(float));
    for (int64_t i = 0; i < shares; ++i) map(to, width, [](Turn a, Turn b) { return a + b; }, to, all + i * width);
}

// The derivative of silu at x, whose sigmoid is s.
inline Turn silu_slope(const Turn& x, const Turn& s) { return s * (1.0f + x * (1.0f - s)); }

}  // namespace ocrquant::OCRQUANT_ISA
