// The gated delta rule over rows of many requests, token by token, states in place. One task is one head of one request.
#include "common/isa.h"
#include "common/pool.h"
#include "delta/step.h"
#include "gated_delta_rows/args.h"

namespace ocrquant::OCRQUANT_ISA {

using namespace delta;

void gated_delta_rows(const GatedDeltaRowsArgs& args) {
    const DeltaRows& rows = args.rows;
    const int64_t size = rows.key_dim * rows.value_dim;
    for_heads(rows, [&](int64_t request, int64_t head, int64_t first, int64_t count) {
        float* state = args.state + (rows.slots[request] * rows.heads + head) * size;
        float* space = static_cast<float*>(scratch(0, step_floats(rows.key_dim, rows.value_dim) * int64_t(sizeof(float))));
        if (args.fresh[request] != 0) memset(state, 0, size_t(size) * sizeof(float));
        for (int64_t row = first; row < first + count; ++row) step(rows, row, head, state, state, space);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
