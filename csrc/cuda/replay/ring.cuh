// Where the records of a slot lie, and how its cursors move. The rules are those of ocrquant/kernels/replay.
#pragma once

#include "common/device.cuh"
#include "replay/arguments.cuh"

namespace ocrquant {

// Place of record `index` of a slot in a ring of `size`, a power of two.
OCRQUANT_BOTH int ring_place(int base, int index, int size) { return (base + index) & (size - 1); }

// Accepted records, never beyond what fits, whatever a cursor of a slot that nobody uses may hold.
OCRQUANT_BOTH int held_records(int write_pos, int most) { return write_pos < 0 ? 0 : write_pos < most ? write_pos : most; }

struct Cursor {
    int base, held, flush, folds;
};

// The cursor of one slot behind a step; `folds` is 1 where the step folded. accepted < 0: the step's single row counts, and a
// fold took it in.
OCRQUANT_BOTH Cursor moved(Cursor c, const CursorMove& move, int accepted) {
    const int taken_in = accepted < 0 ? 1 : 0;
    int count = taken_in ? 1 : accepted;
    count = count < move.window ? count : move.window;
    c.folds = 0;
    if (move.reset) {
        c.base = c.held = 0;
    } else if (c.flush != 0) {
        c.folds = 1;
        c.base = ring_place(c.base, c.held + taken_in, move.size);
        c.held = count - taken_in;
    } else {
        c.held += count;
    }
    c.flush = c.held + 2 * move.window > move.history ? 1 : 0;
    return c;
}

}  // namespace ocrquant
