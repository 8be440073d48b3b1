// The cursors behind a step: what counts is kept, what was folded is dropped, and the next fold is announced.
#include "common/isa.h"
#include "replay/args.h"

namespace ocrquant::OCRQUANT_ISA {

void move_cursors(const MoveCursorsArgs& args) {
    for (int64_t i = 0; i < args.requests; ++i) {
        const int64_t slot = args.slots[i];
        if (slot < 0) continue;
        int64_t count = args.accepted == nullptr ? 1 : args.accepted[i];
        count = count < 0 ? 0 : count > args.window ? args.window : count;
        int64_t base = args.base[slot], held = args.write_pos[slot];
        if (args.reset) {
            base = held = 0;
        } else if (args.flush[slot] != 0) {
            const int64_t taken_in = args.accepted == nullptr ? 1 : 0;
            ++args.flushes[slot];
            base = (base + held + taken_in) & (args.size - 1);
            held = count - taken_in;
        } else {
            held += count;
        }
        args.base[slot] = int32_t(base);
        args.write_pos[slot] = int32_t(held);
        args.flush[slot] = held + 2 * args.window > args.history ? 1 : 0;
    }
}

}  // namespace ocrquant::OCRQUANT_ISA
