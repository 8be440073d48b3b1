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
    // A sum without gaps is one long row.
    const bool dense = args.out_row == args.width;
    const int64_t rows = dense ? 1 : args.rows, width = dense ? args.rows * args.width : args.width;
    const int64_t chunks = (width + CHUNK - 1) / CHUNK;
    parallel_for(rows * chunks, args.rows * args.width < 4 * CHUNK, [&](int64_t job) {
        const int64_t row = job / chunks, first = job % chunks * CHUNK, last = first + CHUNK < width ? first + CHUNK : width;
        const uint16_t *const a = args.a + row * width, *const b = args.b + row * width;
        uint16_t* const out = args.out + row * args.out_row;
        for (int64_t i = first; i < last; ++i) out[i] = to_bf16(from_bf16(a[i]) + from_bf16(b[i]));
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
