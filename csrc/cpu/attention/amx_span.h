// A span of keys in the tiles of AMX, block by block.
//
// What tiles store takes a while to arrive, and a tile that is loaded while its stores are on their way waits for each of them. So
// between two steps of one block there is always one of another: the next block is staged when this one's weights are written, and
// scored before this one's product is read. 16 rows of four heads over 400 keys took 48 us block after block, and take 40 (Xeon family
// 6 model 207, 2026-11-30).
#pragma once

#include "attention/rows.h"

namespace ocrquant::OCRQUANT_ISA::attention {

// Rows as bf16: as they lie, or from codes of E4M3, all of whose values bf16 has, into `to`.
inline const uint16_t* const* as_bf16(const uint16_t* const* lie, int64_t, int64_t, uint16_t*, const uint16_t**) { return lie; }
inline const uint16_t* const* as_bf16(const uint8_t* const* lie, int64_t count, int64_t dim, uint16_t* to, const uint16_t** wide) {
    const WideCodes codes;
    for (int64_t k = 0; k < count; ++k) {
        wide[k] = to + k * dim;
        codes.write(lie[k], dim, to + k * dim);
    }
    return wide;
}

constexpr int64_t FEW = 4;

template <class T, class Source>
struct SpanInTiles {
    const Rows& rows;
    const Workspace& w;
    const Source& source;
    int64_t end;
    Heights heights = Heights::of(rows.count);

    struct Block {
        int64_t first, count, from;  // from: the first row that sees any of it
        bool are_finite;             // whether the values are that some of those rows do not see
        uint8_t* panels;             // of values
        const T *keys[BLOCK], *values[BLOCK];
    };

    void locate(Block& block, int64_t first) const {
        block.first = first;
        block.count = first < end ? smaller_of(BLOCK, end - first) : 0;
        if (block.count > 0) source.locate(first, block.count, block.keys, block.values);
    }

    int64_t seen(const Block& block, int64_t row) const { return smaller_of(block.count, rows.keys_of(row) - block.first); }

    uint16_t* widened(int64_t which) const { return reinterpret_cast<uint16_t*>(w.widened) + which * BLOCK * rows.dim; }

    void stage(Block& block, int parity, const Block& after) const {
        Ahead fetch = Ahead::of(after.keys, after.values, after.count, rows.dim);
        fetch.a_tile = 2 * after.count;
        fetch.some();
        const uint16_t *wide_keys[BLOCK], *wide_values[BLOCK];
        const uint16_t* const* const keys = as_bf16(block.keys, block.count, rows.dim, widened(0), wide_keys);
        const uint16_t* const* const values = as_bf16(block.values, block.count, rows.dim, widened(1), wide_values);
        block.panels = reinterpret_cast<uint8_t*>(w.values) + parity * rows.dim / LANES * VALUES_TILES;
        stage_key_tiles(keys, block.count, rows.dim, reinterpret_cast<uint8_t*>(w.keys));
        stage_value_tiles(values, block.count, rows.dim, block.panels);
        for (block.from = 0; rows.keys_of(block.from) <= block.first;) ++block.from;
        block.are_finite = true;
        for (int64_t k = seen(block, block.from); k < block.count; ++k) block.are_finite &= is_finite(values[k], rows.dim);
    }

    void score() const {
        score_tiles(reinterpret_cast<const uint16_t*>(w.q), reinterpret_cast<const uint8_t*>(w.keys), rows.dim, heights, w.scores);
    }

    void weigh(const Block& block) const {
        for (int64_t r = block.from; r < rows.count; r += LANES) {
            const auto seen_by = [&](int64_t i) { return seen(block, r + i); };
            weigh_rows(w.scores + r * BLOCK, smaller_of(LANES, rows.count - r), w.scale, seen_by, w.part.largest + r,
                       w.totals + r * LANES, w.decay + r);
        }
    }

    // Tiles are of all rows; what they give for rows that do not see the block is dropped.
    void multiply(const Block& block, int64_t keys) const { value_tiles(w.scores, block.panels, keys, rows.dim, heights, w.product); }
    void add(int64_t first, int64_t last) const {
        const int64_t dim = rows.dim;
        for (int64_t r = first; r < last; ++r) add_product(w.product + r * dim, w.decay[r], dim, w.part.out + r * dim);
    }

    // Where a value is not finite, zero times it must not reach a row that does not see it: row by row, without what it does not see.
    void add_one_by_one(const Block& block) const {
        const uint16_t* wide[BLOCK];
        const uint16_t* const* const values = as_bf16(block.values, block.count, rows.dim, widened(1), wide);
        for (int64_t r = block.from; r < rows.count; ++r) {
            stage_value_tiles(values, seen(block, r), rows.dim, block.panels);
            multiply(block, seen(block, r));
            add(r, r + 1);
        }
    }

    void run(int64_t begin) const {
        if (begin >= end) return;
        const SpanTiles tiles(true, heights);
        Block blocks[3];
        locate(blocks[0], begin);
        locate(blocks[1], begin + BLOCK);
        stage(blocks[0], 0, blocks[1]);
        score();
        // Few rows wait little, and are better off with less memory in use.
        const bool overlaps = rows.count > FEW;
        for (int64_t n = 0;; ++n) {
            Block &here = blocks[n % 3], &next = blocks[(n + 1) % 3], &after = blocks[(n + 2) % 3];
            const auto bring = [&] {
                if (next.count == 0) return;
                locate(after, next.first + BLOCK);
                stage(next, overlaps ? (n + 1) % 2 : 0, after);
            };
            weigh(here);
            if (overlaps) bring();
            if (here.are_finite) multiply(here, here.count);
            else add_one_by_one(here);
            if (overlaps && next.count > 0) score();
            if (here.are_finite) add(here.from, rows.count);
            if (next.count == 0) return;
            if (!overlaps) bring(), score();
        }
    }
};

}  // namespace ocrquant::OCRQUANT_ISA::attention
