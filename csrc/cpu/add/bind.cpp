#include "add/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(add, AddArgs)

namespace ocrquant {

void bind_add(nb::module_& m) {
    m.def(
        "add",
        [](Address a, Address b, Address out, int64_t rows, int64_t width, int64_t out_row) {
            launch("add", OCRQUANT_PICK(add),
                   AddArgs{at<const uint16_t>(a), at<const uint16_t>(b), at<uint16_t>(out), rows, width, out_row});
        },
        release_gil());
}

}  // namespace ocrquant
