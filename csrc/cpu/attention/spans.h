// Attention of a block of rows over spans of keys.
//
// Keys are taken in blocks of 64 and spans of 512 that begin at multiples of these, counted from the request's first key.
// Inside a span the softmax runs along; spans are then merged in order. So the sums of a row depend on its own position
// alone, and spans of a long request may be computed by different threads and still give the same bits.
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

    void some() {
        for (const int64_t end = smaller_of(next + a_tile, 2 * count); next < end; ++next) {
            const char* const row = static_cast<const char*>(next < count ? keys[next] : values[next - count]);
            for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
        }
    }
};

inline void score_block(const Rows& rows, const Workspace& w, int64_t from, int64_t count, Ahead& ahead) {
    const int64_t panels = (count + LANES - 1) / LANES, tile_rows = even_tile(rows.count - from);
    for (int64_t c = 0, width; c < panels; c += width) {
        width = c + WIDTH <= panels ? WIDTH : 1;
        for (int64_t r = from; r < rows.count; r += tile_rows) {
            ahead.some();
            const Scores tile{w.q + r * rows.dim, w.keys + c * rows.dim * LANES, w.scores + r * BLOCK + c * LANES, rows.dim};
            run_tile(tile, smaller_of(tile_rows, rows.count - r), width);
        }
    }
}

// Rows of a tile must see equally many keys, since what a row does not see must not reach it even with weight zero.
template <class T>
inline void sum_block(const Rows& rows, const Workspace& w, int64_t from, int64_t first_key, int64_t count, const T* values,
                      Ahead& ahead) {
    const int64_t padded = rows.padded(), panels = padded / LANES, tile_rows = even_tile(rows.count - from);
    for (int64_t c = 0, width; c < panels; c += width) {
        width = c + WIDTH <= panels ? WIDTH : 1;
        for (int64_t r = from, end; r < rows.count; r = end) {
            const int64_t keys = smaller_of(count, rows.keys_of(r) - first_key);
            for (end = r + 1; end < rows.count && end < r + tile_rows; ++end) {
                if (smaller_of(count, rows.keys_of(end) - first_key) != keys) break;
            }
            ahead.some();
            float* const out = w.part.out + r * padded + c * LANES;
            const Sums<T> tile{w.scores + r * BLOCK, w.decay + r, values + c * VALUE_PANEL, out, keys, padded};
            run_tile(tile, end - r, width);
        }
    }
}

#if defined(OCRQUANT_WITH_AMX)

// out = out decay + weights values for rows from `from` on; tiles are of all rows, what they give for others is dropped.
inline void sum_tiles(const Rows& rows, const Workspace& w, int64_t from, int64_t first_key, int64_t count,
                      const uint16_t* const* values) {
    uint8_t* const panels = reinterpret_cast<uint8_t*>(w.values);
    const int64_t dim = rows.dim;
    const auto add_rows = [&](int64_t first, int64_t last, int64_t keys) {
        value_tiles(w.scores, panels, keys, dim, Heights::of(rows.count), w.product);
        for (int64_t r = first; r < last; ++r) add_product(w.product + r * dim, w.decay[r], dim, w.part.out + r * dim);
    };
    bool are_finite = true;
    for (int64_t k = smaller_of(count, rows.keys_of(from) - first_key); k < count; ++k) are_finite &= is_finite(values[k], dim);
    if (are_finite) return add_rows(from, rows.count, count);
    for (int64_t r = from; r < rows.count; ++r) {
        const int64_t keys = smaller_of(count, rows.keys_of(r) - first_key);
        stage_value_tiles(values, keys, dim, panels);
        add_rows(r, r + 1, keys);
    }
}

// As `attend_block`, in tiles. Both operands are staged before either is multiplied: a tile that is loaded while its stores
// are on their way waits for each of them.
inline void attend_tiles(const Rows& rows, const Workspace& w, int64_t first_key, int64_t count, const uint16_t* const* keys,
                         const uint16_t* const* values, Ahead& ahead) {
    int64_t from = 0;
    while (from < rows.count && rows.keys_of(from) <= first_key) ++from;
    if (from == rows.count) return;
    ahead.a_tile = 2 * ahead.count;
    ahead.some();
    uint8_t* const panels = reinterpret_cast<uint8_t*>(w.keys);
    stage_key_tiles(keys, count, rows.dim, panels);
    stage_value_tiles(values, count, rows.dim, reinterpret_cast<uint8_t*>(w.values));
    score_tiles(reinterpret_cast<const uint16_t*>(w.q), panels, rows.dim, Heights::of(rows.count), w.scores);
    for (int64_t r = from; r < rows.count; r += LANES) {
        const auto seen = [&](int64_t i) { return smaller_of(count, rows.keys_of(r + i) - first_key); };
        weigh_rows(w.scores + r * BLOCK, smaller_of(LANES, rows.count - r), w.scale, seen, w.part.largest + r, w.totals + r * LANES,
                   w.decay + r);
    }
    sum_tiles(rows, w, from, first_key, count, values);
}

// The same for codes of E4M3, all of whose values bf16 has.
inline void attend_tiles(const Rows& rows, const Workspace& w, int64_t first_key, int64_t count, const uint8_t* const* keys,
                         const uint8_t* const* values, Ahead& ahead) {
    const uint16_t *wide_keys[BLOCK], *wide_values[BLOCK];
    uint16_t* to = reinterpret_cast<uint16_t*>(w.widened);
    const WideCodes codes;
    for (int64_t k = 0; k < count; ++k, to += 2 * rows.dim) {
        codes.write(keys[k], rows.dim, to);
        codes.write(values[k], rows.dim, to + rows.dim);
        wide_keys[k] = to;
        wide_values[k] = to + rows.dim;
    }
    attend_tiles(rows, w, first_key, count, wide_keys, wide_values, ahead);
}

#endif

template <class T>
inline void attend_block(const Rows& rows, const Workspace& w, int64_t first_key, int64_t count, const T* const* keys,
                         const T* const* values, Ahead& ahead) {
#if defined(OCRQUANT_WITH_AMX)
    if (in_tiles(rows.dim)) return attend_tiles(rows, w, first_key, count, keys, values, ahead);
#endif
    int64_t from = 0;
    while (from < rows.count && rows.keys_of(from) <= first_key) ++from;
    stage_keys(keys, count, rows.dim, w.keys);
    const int64_t tiles = (rows.count - from + TILE - 1) / TILE;
    ahead.a_tile = 2 * ahead.count / (tiles * (PANELS + rows.padded() / LANES) / WIDTH) + 1;
    score_block(rows, w, from, count, ahead);
    for (int64_t r = from; r < rows.count; ++r) {
        const int64_t seen = smaller_of(count, rows.keys_of(r) - first_key);
        w.decay[r] = weigh(w.scores + r * BLOCK, seen, w.part.largest + r, w.totals + r * LANES);
    }
    // One tile widens values on its way; for more of them it is done once.
    if (tiles == 1) {
        T* const panels = reinterpret_cast<T*>(w.values);
        stage_values(values, count, rows.dim, panels);
        sum_block(rows, w, from, first_key, count, panels, ahead);
    } else {
        stage_values(values, count, rows.dim, w.values);
        sum_block(rows, w, from, first_key, count, w.values, ahead);
    }
}

// Fills w.part with what keys begin .. begin + SPAN give; `source.locate` tells where keys lie.
template <class T, class Source>
inline void attend_span(const Rows& rows, const Workspace& w, int64_t begin, const Source& source) {
    const int64_t end = smaller_of(begin + SPAN, rows.most_keys()), padded = rows.padded();
    for (int64_t i = 0; i < rows.count * padded; ++i) w.part.out[i] = 0.f;
    for (int64_t i = 0; i < rows.count * LANES; ++i) w.totals[i] = 0.f;
    for (int64_t r = 0; r < rows.count; ++r) w.part.largest[r] = NO_SCORE;
#if defined(OCRQUANT_WITH_AMX)
    const SpanTiles tiles(in_tiles(rows.dim), Heights::of(rows.count));
#endif
    const T *keys[2][BLOCK], *values[2][BLOCK];
    int64_t count = smaller_of(BLOCK, end - begin);
    source.locate(begin, count, keys[0], values[0]);
    int at = 0;
    for (int64_t first = begin; first < end; first += BLOCK, at ^= 1) {
        const int64_t next = first + BLOCK, ahead = next < end ? smaller_of(BLOCK, end - next) : 0;
        if (ahead > 0) {
            source.locate(next, ahead, keys[at ^ 1], values[at ^ 1]);
        }
        const void* const* const next_keys = reinterpret_cast<const void* const*>(keys[at ^ 1]);
        const void* const* const next_values = reinterpret_cast<const void* const*>(values[at ^ 1]);
        Ahead fetch{next_keys, next_values, ahead, rows.dim * int64_t(sizeof(T))};
        attend_block(rows, w, first, count, keys[at], values[at], fetch);
        count = ahead;
    }
    for (int64_t r = 0; r < rows.count; ++r) w.part.total[r] = sum(load(w.totals + r * LANES));
}

inline void clear(const Rows& rows, const Part& part) {
    for (int64_t i = 0; i < rows.count * rows.padded(); ++i) part.out[i] = 0.f;
    for (int64_t r = 0; r < rows.count; ++r) {
        part.largest[r] = NO_SCORE;
        part.total[r] = 0.f;
    }
}

// Adds the part of the span that begins at `begin` to the sum of those before it.
inline void merge(const Rows& rows, const Part& into, const Part& from, int64_t begin) {
    const int64_t padded = rows.padded();
    for (int64_t r = 0; r < rows.count; ++r) {
        if (rows.keys_of(r) <= begin) continue;
        const float before = into.largest[r], here = from.largest[r], after = here > before ? here : before;
        const float base = after == NO_SCORE ? 0.f : after;
        float kept[LANES], taken[LANES];
        store(kept, exp2(all(before - base)));
        store(taken, exp2(all(here - base)));
        into.largest[r] = after;
        into.total[r] = into.total[r] * kept[0] + from.total[r] * taken[0];
        float *to = into.out + r * padded, *part = from.out + r * padded;
        for (int64_t c = 0; c < padded; c += LANES) {
            store(to + c, fma(load(part + c), all(taken[0]), mul(load(to + c), all(kept[0]))));
        }
    }
}

inline void write_rows(const Rows& rows, const Part& sum, float v_scale) {
    for (int64_t r = 0; r < rows.count; ++r) {
        const int64_t row = rows.first + r;
        uint16_t* out = rows.out + row / rows.group * rows.out_row + row % rows.group * rows.dim;
        const float* from = sum.out + r * rows.padded();
        const float factor = rows.keys_of(r) > 0 ? v_scale / sum.total[r] : 0.f;
        for (int64_t d = 0; d < rows.padded(); d += LANES) store(sum.out + r * rows.padded() + d, mul(load(from + d), all(factor)));
        narrow_row(from, rows.dim, out);
    }
}

}  // namespace ocrquant::OCRQUANT_ISA::attention
