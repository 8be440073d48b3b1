// Each row of a block with those before it, by kernels that the row itself chose: fp32 products summed from the row's own tap
// backwards, rounded once.
#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "common/vec.h"
#include "local_convolution/args.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

// sum[c] += (base[c] + added) * y[c] over the channels of one group.
inline void add_tap(const uint16_t* y, const uint16_t* base, float added, int64_t count, float* sum) {
    int64_t c = 0;
    for (; c + VEC <= count; c += VEC) {
        const F32 kernel = widen(load_as<U16>(base + c)) + added;
        const F32 result = load_as<F32>(sum + c) + kernel * widen(load_as<U16>(y + c));
        std::memcpy(sum + c, &result, sizeof(result));
    }
    for (; c < count; ++c) sum[c] += (from_bf16(base[c]) + added) * from_bf16(y[c]);
}

}  // namespace

void local_convolution(const LocalConvolutionArgs& a) {
    const int64_t groups = a.width / a.group;
    parallel_for(a.rows, a.rows * a.width * a.taps < 1 << 16, [&](int64_t r) {
        float* const sum = static_cast<float*>(scratch(1, a.width * int64_t(sizeof(float))));
        for (int64_t c = 0; c < a.width; ++c) sum[c] = 0.f;
        const int64_t before = r % a.block, taps = a.taps <= before ? a.taps : before + 1;
        for (int64_t t = 0; t < taps; ++t) {
            const uint16_t* const added = a.added + r * a.added_row + t * groups;
            for (int64_t g = 0; g < groups; ++g) {
                const int64_t c = g * a.group;
                add_tap(a.y + (r - t) * a.width + c, a.base + t * a.width + c, from_bf16(added[g]), a.group, sum + c);
            }
        }
        narrow_row(sum, a.width, a.out + r * a.width);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
