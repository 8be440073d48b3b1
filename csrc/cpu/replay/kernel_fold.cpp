// Checkpoints brought up to date with their records, outside a step.
#include "common/isa.h"
#include "common/pool.h"
#include "replay/records.h"

namespace ocrquant::OCRQUANT_ISA {

using namespace delta;

void replay_fold(const ReplayFoldArgs& args) {
    const ReplayRing& ring = args.ring;
    const int64_t k = args.key_dim, v = args.value_dim;
    parallel_for(args.requests * args.heads, args.requests * args.heads * k * v < 200000, [&](int64_t task) {
        const int64_t request = task / args.heads, head = task % args.heads, slot = args.slots[request];
        if (slot < 0 || args.fresh[request] != 0 || held(ring, slot) == 0) return;
        const int64_t floats =
            records_floats(ring, k, v) + Space::rounded(ring.history) + Space::rounded(ring.history * k);
        Space space(static_cast<float*>(scratch(0, floats * int64_t(sizeof(float)))));
        const Place place{slot, head, head / (args.heads / args.key_heads), args.heads, args.key_heads, k, v};
        const Records records = accepted_records(ring, place, space);
        float* weights = space.take(ring.history);
        float* keys = space.take(ring.history * k);
        const float past = decays_behind(records.log_gate, records.count, 0.f, weights);
        fold(ring.state + (slot * args.heads + head) * k * v, records.pieces, 2, weights, past, k, v, keys);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
