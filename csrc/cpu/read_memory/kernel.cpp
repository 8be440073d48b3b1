// The exclusive or of a buffer's words: reads every byte once and computes next to nothing, so its time is the memory's.
#include "common/isa.h"
#include "common/pool.h"
#include "read_memory/args.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {
constexpr int64_t CHUNK = 1 << 17;  // words: 1 MiB

uint64_t fold(const uint64_t* data, int64_t words) {
    uint64_t lanes[32] = {};
    int64_t i = 0;
    for (; i + 32 <= words; i += 32)
        for (int lane = 0; lane < 32; ++lane) lanes[lane] ^= data[i + lane];
    uint64_t sum = 0;
    for (; i < words; ++i) sum ^= data[i];
    for (uint64_t lane : lanes) sum ^= lane;
    return sum;
}
}  // namespace

void read_memory(const ReadMemoryArgs& args) {
    const int64_t chunks = (args.words + CHUNK - 1) / CHUNK;
    uint64_t* const partial = static_cast<uint64_t*>(scratch(0, chunks * int64_t(sizeof(uint64_t))));
    parallel_for(chunks, chunks < 4, [&](int64_t chunk) {
        const int64_t first = chunk * CHUNK, last = first + CHUNK < args.words ? first + CHUNK : args.words;
        partial[chunk] = fold(args.data + first, last - first);
    });
    uint64_t sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum ^= partial[chunk];
    *args.out = sum;
}

}  // namespace ocrquant::OCRQUANT_ISA
