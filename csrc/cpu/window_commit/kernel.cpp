// What is accepted of a window becomes the state: copies, for all layers at once.
#include "common/isa.h"
#include "common/pool.h"
#include "window_commit/args.h"

#include <cstring>

namespace ocrquant::OCRQUANT_ISA {

namespace {

// Contents of padding are never looked at beyond the slot; numbers out of range count as the nearer end.
int64_t accepted_of(const int32_t* accepted, int64_t request, int64_t window) {
    const int64_t count = accepted[request];
    return count < 0 ? 0 : count > window ? window : count;
}

}  // namespace

void commit_state(const CommitStateArgs& args) {
    const int64_t tasks = args.layers * args.requests;
    parallel_for(tasks, tasks * args.size < (1 << 18), [&](int64_t task) {
        const int64_t layer = task / args.requests, request = task % args.requests, slot = args.slots[request];
        if (slot < 0) return;
        const int64_t count = accepted_of(args.accepted, request, args.window);
        if (count == 0) return;
        const int64_t place = layer * args.num_slots + slot;
        memcpy(args.state + place * args.size, args.states + (place * args.window + count - 1) * args.size, size_t(args.size));
    });
}

void commit_tail(const CommitTailArgs& args) {
    const int64_t tasks = args.layers * args.requests;
    parallel_for(tasks, tasks * args.taps * args.size < (1 << 18), [&](int64_t task) {
        const int64_t layer = task / args.requests, request = task % args.requests, slot = args.slots[request];
        if (slot < 0) return;
        const int64_t count = accepted_of(args.accepted, request, args.window), place = layer * args.num_slots + slot;
        char* tail = args.tail + place * args.taps * args.size;
        const char* record = args.record + place * args.window * args.size;
        for (int64_t tap = 0; tap < args.taps; ++tap) {
            // The inputs are the tail's, then the record's; the new tail begins `count` further.
            const int64_t from = tap + count;
            const char* source = from < args.taps ? tail + from * args.size : record + (from - args.taps) * args.size;
            if (count > 0) memcpy(tail + tap * args.size, source, size_t(args.size));
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
