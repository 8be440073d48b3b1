// Attention of a block of rows over spans of keys.
//
// Keys are taken in blocks of 64 and spans of 512 that begin at multiples of these, counted from the request's first key.
// Inside a span the softmax runs along; spans are then merged in order. So the sums of a row depend on its own position
// alone, and spans of a long request may be computed by different threads and still give the same bits.
#pragma once

#include "attention/rows.h"
#if defined(OCRQUANT_WITH_AMX)
#include "attention/amx_span.h"
#endif

namespace ocrquant::OCRQUANT_ISA::attention {

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

template <class T>
inline void attend_block(const Rows& rows, const Workspace& w, int64_t first_key, int64_t count, const T* const* keys,
                         const T* const* values, Ahead& ahead) {
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

// Block by block; `w.part` is clear.
template <class T, class Source>
inline void attend_blocks(const Rows& rows, const Workspace& w, int64_t begin, int64_t end, const Source& source) {
    const T *keys[2][BLOCK], *values[2][BLOCK];
    int64_t count = smaller_of(BLOCK, end - begin);
    source.locate(begin, count, keys[0], values[0]);
    int at = 0;
    for (int64_t first = begin; first < end; first += BLOCK, at ^= 1) {
        const int64_t next = first + BLOCK, ahead = next < end ? smaller_of(BLOCK, end - next) : 0;
        if (ahead > 0) source.locate(next, ahead, keys[at ^ 1], values[at ^ 1]);
        Ahead fetch = Ahead::of(keys[at ^ 1], values[at ^ 1], ahead, rows.dim);
        attend_block(rows, w, first, count, keys[at], values[at], fetch);
        count = ahead;
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
    if (in_tiles(rows.dim)) {
        SpanInTiles<T, Source>{rows, w, source, end}.run(begin);
    } else {
        attend_blocks<T>(rows, w, begin, end, source);
    }
#else
    attend_blocks<T>(rows, w, begin, end, source);
#endif
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
