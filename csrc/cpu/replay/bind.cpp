#include "replay/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(replay_rows, ReplayRowsArgs)
OCRQUANT_DECLARE(replay_fold, ReplayFoldArgs)
OCRQUANT_DECLARE(move_cursors, MoveCursorsArgs)

namespace ocrquant {

void bind_replay(nb::module_& m) {
    nb::class_<ReplayRing>(m, "ReplayRing")
        .def("__init__", [](ReplayRing* ring, Address state, Address u, Address k, Address log_gate, bool is_bf16, Address base,
                            Address write_pos, Address flush, int64_t size, int64_t history) {
            new (ring) ReplayRing{at<float>(state), at<void>(u), at<void>(k), at<float>(log_gate), is_bf16,
                                  at<const int32_t>(base), at<const int32_t>(write_pos), at<const int32_t>(flush), size, history};
        });
    m.def(
        "replay_rows",
        [](const DeltaRows& rows, const ReplayRing& ring, bool accepted) {
            launch("replay_rows", OCRQUANT_PICK(replay_rows), ReplayRowsArgs{rows, ring, accepted});
        },
        release_gil());
    m.def(
        "replay_fold",
        [](const ReplayRing& ring, Address slots, Address fresh, int64_t requests, int64_t key_heads, int64_t heads,
           int64_t key_dim, int64_t value_dim) {
            launch("replay_fold", OCRQUANT_PICK(replay_fold),
                   ReplayFoldArgs{ring, at<const int32_t>(slots), at<const int32_t>(fresh), requests, key_heads, heads,
                                  key_dim, value_dim});
        },
        release_gil());
    m.def(
        "move_cursors",
        [](Address base, Address write_pos, Address flush, Address flushes, int64_t size, int64_t history, int64_t window,
           Address slots, Address accepted, int64_t requests, bool reset) {
            launch("move_cursors", OCRQUANT_PICK(move_cursors),
                   MoveCursorsArgs{at<int32_t>(base), at<int32_t>(write_pos), at<int32_t>(flush), at<int32_t>(flushes), size,
                                   history, window, at<const int32_t>(slots), at<const int32_t>(accepted), requests, reset});
        },
        release_gil());
}

}  // namespace ocrquant
