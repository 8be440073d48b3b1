#include "read_memory/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(read_memory, ReadMemoryArgs)

namespace ocrquant {

void bind_read_memory(nb::module_& m) {
    m.def(
        "read_memory",
        [](Address data, int64_t words, Address out) {
            const ReadMemoryArgs args{at<const uint64_t>(data), words, at<uint64_t>(out)};
            launch("read_memory", OCRQUANT_PICK(read_memory), args);
        },
        release_gil());
}

}  // namespace ocrquant
