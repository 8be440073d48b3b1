// The rows of attention, what spans of keys leave of them, and the memory of a task.
#pragma once

#include "attention/tiles.h"
#include "common/vec.h"
#if defined(OCRQUANT_WITH_AMX)
#include "attention/amx_block.h"
#endif

namespace ocrquant::OCRQUANT_ISA::attention {

constexpr int64_t SPAN = 512;
constexpr float LOG2_E = 1.44269504f;
constexpr float NO_SCORE = -__builtin_inff();

// Rows of one key/value head: row r is query r / group, head r % group of those that share the head.
struct Rows {
    const uint16_t* q;
    int64_t q_row;
    int64_t q_head;
    uint16_t* out;
    int64_t out_row;
    int64_t group;
    int64_t first;
    int64_t count;
    int64_t seen;  // keys that query 0 sees
    int64_t more;  // how many more each next one sees: 1 or 0
    int64_t dim;

    int64_t keys_of(int64_t r) const { return seen + more * ((first + r) / group); }
    int64_t most_keys() const { return count == 0 ? 0 : keys_of(count - 1); }
    int64_t padded() const { return rounded_up(dim, LANES); }
};

// What a span, or the spans so far, gave: unnormalised outputs [rows, padded], largest scores and sums of weights [rows].
struct Part {
    float* out;
    float* largest;
    float* total;

    static int64_t floats(int64_t rows, int64_t padded) { return rows * (padded + 2); }
    static Part at(float* memory, int64_t rows, int64_t padded) {
        return {memory, memory + rows * padded, memory + rows * (padded + 1)};
    }
};

// Whether products are computed in the tiles of AMX; by the width of a head, never by rows.
inline bool in_tiles(int64_t dim) {
#if defined(OCRQUANT_WITH_AMX)
    return dim % TILE_COLUMNS == 0;
#else
    return dim < 0;
#endif
}

// Memory of one task.
struct Workspace {
    float *q, *keys, *values, *scores, *totals, *decay;
    float* product;   // of weights and values, in tiles
    float* widened;   // keys and values of a block as bf16, where they lie as codes
    float scale = 1;  // of scores, where queries lie as they came
    Part part, sum;

    // The last tile of rows may go beyond them, by less than one row for each tile.
    static int64_t in_whole_tiles(int64_t rows) { return rows + rows / LANES; }

    static int64_t floats(int64_t rows, int64_t dim) {
        const int64_t padded = rounded_up(dim, LANES), parts = rounded_up(2 * Part::floats(rows, padded), LANES);
        return rounded_up(rows * dim, LANES) + (BLOCK + VALUE_PANEL / LANES) * padded +
               in_whole_tiles(rows) * (BLOCK + padded) + rows * LANES + parts + rounded_up(rows, LANES) + BLOCK * padded;
    }
    static Workspace at(float* memory, int64_t rows, int64_t dim) {
        const int64_t padded = rounded_up(dim, LANES);
        Workspace w;
        w.keys = memory;
        w.values = w.keys + BLOCK * padded;
        w.scores = w.values + VALUE_PANEL * (padded / LANES);
        w.product = w.scores + in_whole_tiles(rows) * BLOCK;
        w.totals = w.product + in_whole_tiles(rows) * padded;
        w.q = w.totals + rows * LANES;
        float* const parts = w.q + rounded_up(rows * dim, LANES);
        w.part = Part::at(parts, rows, padded);
        w.sum = Part::at(parts + Part::floats(rows, padded), rows, padded);
        w.decay = parts + rounded_up(2 * Part::floats(rows, padded), LANES);
        w.widened = w.decay + rounded_up(rows, LANES);
        return w;
    }
};

// As many rows as keep queries, outputs and sums in the second-level cache.
inline int64_t rows_at_once(int64_t rows, int64_t dim) {
    const int64_t most = 24576 / dim > TILE ? 24576 / dim / TILE * TILE : TILE;
    const int64_t blocks = (rows + most - 1) / most;
    return blocks <= 1 ? rows : rounded_up((rows + blocks - 1) / blocks, TILE);
}

inline void load_queries(const Rows& rows, float scale, float* q) {
    for (int64_t r = 0; r < rows.count; ++r, q += rows.dim) {
        const int64_t row = rows.first + r;
        widen_row(rows.q + row / rows.group * rows.q_row + row % rows.group * rows.q_head, rows.dim, q);
        for (int64_t d = 0; d < rows.dim; ++d) q[d] *= scale;
    }
}

// The same as bf16 where products are computed in tiles: in the memory of `q`, whose second half the last tile may go into.
inline void copy_queries(const Rows& rows, float* q) {
    uint16_t* to = reinterpret_cast<uint16_t*>(q);
    for (int64_t r = 0; r < rows.count; ++r, to += rows.dim) {
        const int64_t row = rows.first + r;
        memcpy(to, rows.q + row / rows.group * rows.q_row + row % rows.group * rows.q_head, size_t(rows.dim) * sizeof(uint16_t));
    }
}

inline void take_queries(const Rows& rows, float scale, Workspace& w) {
    if (in_tiles(rows.dim)) {
        w.scale = scale;
        copy_queries(rows, w.q);
    } else {
        load_queries(rows, scale, w.q);
    }
}

// Tiles of few rows wait for their own sums: 8 rows are better 4 and 4 than 6 and 2.
inline int64_t even_tile(int64_t rows) {
    const int64_t tiles = (rows + TILE - 1) / TILE;
    return tiles == 0 ? TILE : (rows + tiles - 1) / tiles;
}

inline int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

// Asks for the rows of the next block while this one is computed, a few at every tile: they lie apart, so the hardware does not
// foresee them, and all at once would be waited for.
struct Ahead {
    const void* const* keys;
    const void* const* values;
    int64_t count;
    int64_t bytes;  // of a row
    int64_t a_tile = 0;
    int64_t next = 0;

    template <class T>
    static Ahead of(const T* const* keys, const T* const* values, int64_t count, int64_t dim) {
        return {reinterpret_cast<const void* const*>(keys), reinterpret_cast<const void* const*>(values), count, dim * int64_t(sizeof(T))};
    }

    void some() {
        for (const int64_t end = smaller_of(next + a_tile, 2 * count); next < end; ++next) {
            const char* const row = static_cast<const char*>(next < count ? keys[next] : values[next - count]);
            for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
        }
    }
};

}  // namespace ocrquant::OCRQUANT_ISA::attention
