// Cosines and sines of rotary positions. The angle is one fp32 product, as the models define it; its cosine is taken in double
// precision, so that what is stored is the nearest value whatever the library.
#include <math.h>

#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "rope_table/args.h"

namespace ocrquant::OCRQUANT_ISA {

void rope_table(const RopeTableArgs& args) {
    parallel_for(args.rows, args.rows * args.half < 1 << 11, [&](int64_t r) {
        float *cos = args.cos + r * args.half, *sin = args.sin + r * args.half;
        for (int64_t j = 0; j < args.half; ++j) {
            const double angle = float(args.positions[args.axis[j] * args.position_axis + r]) * args.inv_freq[j];
            cos[j] = float(::cos(angle));
            sin[j] = float(::sin(angle));
        }
        if (!args.to_bf16) return;
        for (int64_t j = 0; j < args.half; ++j) {
            cos[j] = from_bf16(to_bf16(cos[j]));
            sin[j] = from_bf16(to_bf16(sin[j]));
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
