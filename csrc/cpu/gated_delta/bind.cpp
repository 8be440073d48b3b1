#include "common/bind.h"
#include "gated_delta/args.h"

OCRQUANT_DECLARE(gated_delta, GatedDeltaArgs)
OCRQUANT_DECLARE(gated_delta_backward, GatedDeltaBackwardArgs)

namespace ocrquant {

void bind_gated_delta(nb::module_& m) {
    nb::class_<GatedDeltaSequences>(m, "GatedDeltaSequences")
        .def("__init__", [](GatedDeltaSequences* in, Address q, Address k, Address v, Address log_gate, Address beta,
                            int64_t batch, int64_t length, int64_t key_heads, int64_t heads, int64_t key_dim,
                            int64_t value_dim) {
            new (in) GatedDeltaSequences{at<const float>(q),        at<const float>(k),    at<const float>(v),
                                         at<const float>(log_gate), at<const float>(beta), batch,
                                         length,                    key_heads,             heads,
                                         key_dim,                   value_dim};
        });
    m.def(
        "gated_delta",
        [](const GatedDeltaSequences& in, Address out) {
            launch("gated_delta", OCRQUANT_PICK(gated_delta), GatedDeltaArgs{in, at<float>(out)});
        },
        release_gil());
    m.def(
        "gated_delta_backward",
        [](const GatedDeltaSequences& in, Address d_out, Address d_q, Address d_k, Address d_v, Address d_log_gate,
           Address d_beta) {
            launch("gated_delta_backward", OCRQUANT_PICK(gated_delta_backward),
                   GatedDeltaBackwardArgs{in, at<const float>(d_out), at<float>(d_q), at<float>(d_k), at<float>(d_v),
                                          at<float>(d_log_gate), at<float>(d_beta)});
        },
        release_gil());
}

}  // namespace ocrquant
