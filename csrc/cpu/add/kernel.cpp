// out = a + b in bf16: summed in fp32, rounded once.
#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "add/args.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {
constexpr int64_t CHUNK = 1 << 15;
}

void add(const AddArgs& args) {
    const int64_t chunks = (args.count + CHUNK - 1) / CHUNK;
    parallel_for(chunks, chunks < 4, [&](int64_t chunk) {
        const int64_t first = chunk * CHUNK, last = first + CHUNK < args.count ? first + CHUNK : args.count;
        for (int64_t i = first; i < last; ++i) args.out[i] = to_bf16(from_bf16(args.a[i]) + from_bf16(args.b[i]));
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
