#include <nanobind/stl/tuple.h>

#include "common/bind.h"
#include "gated_delta_redo/args.h"

OCRQUANT_DECLARE(record_window, RecordWindowArgs)
OCRQUANT_DECLARE(redo_window, RedoWindowArgs)

namespace ocrquant {

void bind_gated_delta_redo(nb::module_& m) {
    using Records = std::tuple<Address, Address, Address>;
    const auto records_at = [](const Records& k_u_decay) {
        const auto [k, u, decay] = k_u_decay;
        return WindowRecords{at<float>(k), at<float>(u), at<float>(decay)};
    };
    m.def(
        "record_window",
        [records_at](const DeltaRows& rows, Address state, const Records& records, int64_t window) {
            launch("record_window", OCRQUANT_PICK(record_window),
                   RecordWindowArgs{rows, at<const float>(state), records_at(records), window});
        },
        release_gil());
    using Seven = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
    m.def(
        "redo_window",
        [records_at](Address state, const Records& records, Address slots, Address accepted,
                     const Seven& requests_layers_slots_window_heads_key_value) {
            const auto [requests, layers, num_slots, window, heads, key_dim, value_dim] =
                requests_layers_slots_window_heads_key_value;
            launch("redo_window", OCRQUANT_PICK(redo_window),
                   RedoWindowArgs{at<float>(state), records_at(records), at<const int32_t>(slots), at<const int32_t>(accepted),
                                  requests, layers, num_slots, window, heads, key_dim, value_dim});
        },
        release_gil());
}

}  // namespace ocrquant
