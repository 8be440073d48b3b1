// Windows of drafts without a state for each token: the rule runs on a copy and notes what each row did, and what is accepted is
// done again by the same steps, so that a state has the bits of rows that came one by one.
//
// The copy of a head's state stays in a cache nearby. A state of its own for each of 16 drafts took 137 us a layer of four heads
// of 64 x 64 for one request, of which most was writing them (Xeon family 6 model 207, 2026-11-30).
#include "common/isa.h"
#include "common/pool.h"
#include "delta/run.h"
#include "gated_delta_redo/args.h"

namespace ocrquant::OCRQUANT_ISA {

using namespace delta;

namespace {

// Records of a row and head; `at` counts heads of rows.
struct Record {
    float *k, *u, *decay;

    Record(const WindowRecords& all, int64_t at, int64_t key_dim, int64_t value_dim)
        : k(all.k + at * key_dim), u(all.u + at * value_dim), decay(all.decay + at) {}
};

}  // namespace

void record_window(const RecordWindowArgs& args) {
    const DeltaRows& rows = args.rows;
    const int64_t key_dim = rows.key_dim, value_dim = rows.value_dim, size = key_dim * value_dim;
    for_heads(rows, [&](int64_t request, int64_t head, int64_t first, int64_t count) {
        const int64_t slot = rows.slots[request];
        // A request with more rows than a window has would write into its neighbour's records.
        if (count > args.window) count = args.window;
        const int64_t floats = size + count * (key_dim + value_dim) + 2 * count;
        float* const copy = static_cast<float*>(scratch(0, floats * int64_t(sizeof(float))));
        float *const q = copy + size, *const out = q + count * key_dim, *const beta = out + count * value_dim;
        float* const kq = beta + count;
        const Record record(args.records, slot * args.window * rows.heads + head, key_dim, value_dim);
        const int64_t k_row = rows.heads * key_dim, u_row = rows.heads * value_dim;
        for (int64_t token = 0; token < count; ++token) {
            terms_of(rows, first + token, head, record.k + token * k_row, q + token * key_dim, record.decay + token * rows.heads,
                     beta + token, kq + token);
        }
        run_rows({args.state + (slot * rows.heads + head) * size, copy, false, key_dim, value_dim, count, record.k, k_row, q,
                  record.decay, rows.heads, beta, kq, value_of(rows, first, head), rows.mixed_stride, record.u, u_row, out});
        for (int64_t token = 0; token < count; ++token) {
            write_bf16(out + token * value_dim, value_dim, out_of(rows, first + token, head));
        }
    });
}

void redo_window(const RedoWindowArgs& args) {
    const int64_t size = args.key_dim * args.value_dim, tasks = args.layers * args.requests * args.heads;
    parallel_for(tasks, tasks * size * args.window < SERIAL_STATE_ELEMENTS, [&](int64_t task) {
        const int64_t head = task % args.heads, request = task / args.heads % args.requests;
        const int64_t layer = task / args.heads / args.requests, slot = args.slots[request];
        if (slot < 0) return;
        const int64_t count = args.accepted[request] < args.window ? args.accepted[request] : args.window;
        const int64_t place = layer * args.num_slots + slot;
        float* const state = args.state + (place * args.heads + head) * size;
        for (int64_t token = 0; token < count; ++token) {
            const Record record(args.records, (place * args.window + token) * args.heads + head, args.key_dim, args.value_dim);
            update_state(state, state, args.key_dim, args.value_dim, *record.decay, record.k, record.u);
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
