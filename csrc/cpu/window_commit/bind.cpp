#include "window_commit/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(commit_state, CommitStateArgs)
OCRQUANT_DECLARE(commit_tail, CommitTailArgs)

namespace ocrquant {

void bind_window_commit(nb::module_& m) {
    m.def(
        "commit_state",
        [](Address state, Address states, Address slots, Address accepted, int64_t requests, int64_t layers, int64_t num_slots,
           int64_t window, int64_t size) {
            launch("commit_state", OCRQUANT_PICK(commit_state),
                   CommitStateArgs{at<char>(state), at<const char>(states), at<const int32_t>(slots),
                                   at<const int32_t>(accepted), requests, layers, num_slots, window, size});
        },
        release_gil());
    m.def(
        "commit_tail",
        [](Address tail, Address record, Address slots, Address accepted, int64_t requests, int64_t layers, int64_t num_slots,
           int64_t window, int64_t taps, int64_t size) {
            launch("commit_tail", OCRQUANT_PICK(commit_tail),
                   CommitTailArgs{at<char>(tail), at<const char>(record), at<const int32_t>(slots), at<const int32_t>(accepted),
                                  requests, layers, num_slots, window, taps, size});
        },
        release_gil());
}

}  // namespace ocrquant
