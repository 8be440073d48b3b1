#include "common/bind.h"
#include "gated_delta_state/args.h"

OCRQUANT_DECLARE(gated_delta_state, GatedDeltaStateArgs)

namespace ocrquant {

void bind_gated_delta_state(nb::module_& m) {
    m.def(
        "gated_delta_state",
        [](Address mixed, Address log_gate, Address beta, Address state, Address out, bool is_bf16, int64_t batch,
           int64_t length, int64_t key_heads, int64_t heads, int64_t key_dim, int64_t value_dim) {
            launch("gated_delta_state", OCRQUANT_PICK(gated_delta_state),
                   GatedDeltaStateArgs{at<const void>(mixed), at<const float>(log_gate), at<const float>(beta),
                                       at<float>(state), at<void>(out), is_bf16, batch, length, key_heads, heads, key_dim,
                                       value_dim});
        },
        release_gil());
}

}  // namespace ocrquant
