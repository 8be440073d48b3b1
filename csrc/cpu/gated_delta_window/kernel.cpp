// The gated delta rule over windows of drafts: the state behind each token is written aside.
#include "common/isa.h"
#include "common/pool.h"
#include "delta/step.h"
#include "gated_delta_window/args.h"

namespace ocrquant::OCRQUANT_ISA {

using namespace delta;

void gated_delta_window(const GatedDeltaWindowArgs& args) {
    const DeltaRows& rows = args.rows;
    const int64_t size = rows.key_dim * rows.value_dim;
    for_heads(rows, [&](int64_t request, int64_t head, int64_t first, int64_t count) {
        const int64_t slot = rows.slots[request];
        float* space = static_cast<float*>(scratch(0, step_floats(rows.key_dim, rows.value_dim) * int64_t(sizeof(float))));
        const float* from = args.state + (slot * rows.heads + head) * size;
        // A request with more rows than a window has would write into its neighbour's states.
        if (count > args.window) count = args.window;
        for (int64_t token = 0; token < count; ++token) {
            float* to = args.states + ((slot * args.window + token) * rows.heads + head) * size;
            step(rows, first + token, head, from, to, space);
            from = to;
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
