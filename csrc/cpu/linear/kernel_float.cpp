// Products of fp32 values (AVX-512: of bf16 pairs) with decoded weights: bf16, FP8 and NVFP4 weights under bf16 rows, FP8 under FP8.
#if !defined(OCRQUANT_WITH_AMX)  // kernel_amx.cpp in its place

#include "linear/float_tiles.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

constexpr int64_t ROW_BLOCK = 96;               // rows that meet one decoded chunk: their chunk stays in the second-level cache
constexpr int64_t PREPARED = 2 * ROW_BLOCK;     // rows prepared at once
constexpr int64_t MOST_PANELS = 16;             // panels of a task: their sums stay there too
constexpr int64_t STEP = 4;                     // panels in flight for few rows

enum Slot { rows_slot = 0, factors_slot = 1, sums_slot = 2, weights_slot = 3 };

struct Job {
    const LinearArgs& args;
    int64_t columns;      // padded
    int64_t panel_bytes;
    int64_t first_row;    // of the prepared rows
    int64_t rows;         // prepared
    const Element* x;     // [chunks][rows][CHUNK]
    const float* factors; // [rows]
};

struct Place {
    const Unit* x;        // of the first row
    const uint8_t* w;     // of the first panel's chunk
    float* c;             // of the first row and panel
    int64_t rows, panels, columns, c_stride;
};

template <int ROWS>
void tile_rows(const Unit* x, const Unit* w, int64_t w_stride, int64_t units, float* c, int64_t c_stride, int64_t panels) {
    constexpr int TOGETHER = ROWS <= 1 ? 4 : ROWS <= 3 || TILE_ROWS > 6 ? 2 : 1;
    int64_t p = 0;
    for (; p + TOGETHER <= panels; p += TOGETHER)
        tile<ROWS, TOGETHER>(x, w + p * w_stride, w_stride, units, c + p * c_stride, c_stride);
    for (; p < panels; ++p) tile<ROWS, 1>(x, w + p * w_stride, w_stride, units, c + p * c_stride, c_stride);
}

void any_rows(int64_t rows, const Unit* x, const Unit* w, int64_t w_stride, int64_t units, float* c, int64_t c_stride,
              int64_t panels) {
    switch (rows) {
        case 1: return tile_rows<1>(x, w, w_stride, units, c, c_stride, panels);
        case 2: return tile_rows<2>(x, w, w_stride, units, c, c_stride, panels);
        case 3: return tile_rows<3>(x, w, w_stride, units, c, c_stride, panels);
        case 4: return tile_rows<4>(x, w, w_stride, units, c, c_stride, panels);
#if !defined(OCRQUANT_WITH_PLAIN)
        case 5: return tile_rows<5>(x, w, w_stride, units, c, c_stride, panels);
        case 6: return tile_rows<6>(x, w, w_stride, units, c, c_stride, panels);
#endif
#if defined(OCRQUANT_WITH_AVX512)
        case 7: return tile_rows<7>(x, w, w_stride, units, c, c_stride, panels);
        case 8: return tile_rows<8>(x, w, w_stride, units, c, c_stride, panels);
#endif
    }
}

// Chunks of up to STEP panels are decoded, then all rows pass over them, in tiles of nearly equal height.
void decoded_chunk(const Job& job, const Place& place) {
    Unit* const buffer = static_cast<Unit*>(scratch(weights_slot, STEP * CHUNK * PANEL * int64_t(sizeof(Unit)) / UNIT));
    const int64_t tiles = ceil_div(place.rows, TILE_ROWS);
    const int64_t together = place.rows <= 3 || TILE_ROWS > 6 ? STEP : 1;
    for (int64_t p = 0; p < place.panels; p += together) {
        const int64_t count = smaller(together, place.panels - p);
        const Unit* w = buffer;
        int64_t w_stride = CHUNK_UNITS * PANEL;
        if (READS_BF16 && job.args.kind == LinearKind::bf16) {
            w = reinterpret_cast<const Unit*>(place.w + p * job.panel_bytes);
            w_stride = job.panel_bytes / int64_t(sizeof(Unit));
        } else {
            for (int64_t i = 0; i < count; ++i)
                decode(job.args.kind, place.w + (p + i) * job.panel_bytes, place.columns, buffer + i * w_stride);
        }
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t begin = place.rows * t / tiles, end = place.rows * (t + 1) / tiles;
            any_rows(end - begin, place.x + begin * CHUNK_UNITS, w, w_stride, place.columns / UNIT,
                     place.c + p * place.c_stride + begin * PANEL, place.c_stride, count);
        }
    }
}

#if defined(OCRQUANT_WITH_AVX2)

constexpr int64_t MOST_STREAMED = 4;

template <int ROWS, int TOGETHER>
void streamed_rows(const Job& job, const Place& place) {
    const bool is_fp8 = job.args.kind != LinearKind::bf16;
    int64_t p = 0;
    for (; p + TOGETHER <= place.panels; p += TOGETHER)
        (is_fp8 ? stream_fp8<ROWS, TOGETHER> : stream_bf16<ROWS, TOGETHER>)(place.x, place.w + p * job.panel_bytes, job.panel_bytes,
                                                                           place.columns, place.c + p * place.c_stride, place.c_stride);
    for (; p < place.panels; ++p)
        (is_fp8 ? stream_fp8<ROWS, 1> : stream_bf16<ROWS, 1>)(place.x, place.w + p * job.panel_bytes, job.panel_bytes,
                                                              place.columns, place.c + p * place.c_stride, place.c_stride);
}

void chunk(const Job& job, const Place& place) {
    if (job.args.kind == LinearKind::nvfp4_plain || place.rows > MOST_STREAMED) return decoded_chunk(job, place);
    switch (place.rows) {
        case 1: return streamed_rows<1, 2>(job, place);
        case 2: return streamed_rows<2, 2>(job, place);
        case 3: return streamed_rows<3, 1>(job, place);
        case 4: return streamed_rows<4, 1>(job, place);
    }
}

#else

void chunk(const Job& job, const Place& place) { decoded_chunk(job, place); }

#endif

// Rows begin .. begin + rows of the prepared ones times some panels, all columns.
void run_task(const Job& job, int64_t begin, int64_t rows, int64_t first_panel, int64_t panels) {
    const ExactSubnormals guard;
    float* const sums = static_cast<float*>(scratch(sums_slot, panels * rows * PANEL * int64_t(sizeof(float))));
    std::memset(sums, 0, size_t(panels * rows * PANEL) * sizeof(float));
    const uint8_t* const w = job.args.weight + first_panel * job.panel_bytes;
    for (int64_t k = 0; k < job.columns; k += CHUNK) {
        const Unit* const x = reinterpret_cast<const Unit*>(job.x + k * job.rows) + begin * CHUNK_UNITS;
        const Place place{x, w + panel_bytes(job.args.kind, k), sums, rows, panels, smaller(CHUNK, job.columns - k), rows * PANEL};
        chunk(job, place);
    }
    for (int64_t p = 0; p < panels; ++p)
        for (int64_t r = 0; r < rows; ++r)
            finish(job.args, sums + (p * rows + r) * PANEL, job.first_row + begin + r, first_panel + p, job.factors[begin + r], 1.0f);
}

void run_rows(const LinearArgs& args, int64_t first_row, int64_t rows, bool serial) {
    const int64_t columns = ceil_div(args.in_features, COLUMNS) * COLUMNS;
    const int64_t chunks = ceil_div(columns, CHUNK);
    Element* const x = static_cast<Element*>(scratch(rows_slot, chunks * rows * CHUNK * int64_t(sizeof(Element))));
    float* const factors = static_cast<float*>(scratch(factors_slot, rows * int64_t(sizeof(float))));
    parallel_for(rows, serial || rows * columns < (1 << 16), [&](int64_t r) {
        const ExactSubnormals guard;
        factors[r] = prepare_row<CHUNK, COLUMNS>(args, first_row + r, x + r * CHUNK, rows * CHUNK);
    });
    const Job job{args, columns, panel_bytes(args.kind, columns), first_row, rows, x, factors};
    const int64_t panels = ceil_div(args.out_features, PANEL), row_blocks = ceil_div(rows, ROW_BLOCK);
    const int64_t step = panels_of_task(panels, job.panel_bytes, row_blocks, STEP, MOST_PANELS);
    const int64_t groups = ceil_div(panels, step);
    parallel_for(row_blocks * groups, serial, [&](int64_t task) {
        const int64_t begin = task / groups * ROW_BLOCK, panel = task % groups * step;
        run_task(job, begin, smaller(ROW_BLOCK, rows - begin), panel, smaller(step, panels - panel));
    });
}

}  // namespace

void linear_float(const LinearArgs& args) {
    const bool serial = is_small(args, panel_bytes(args.kind, ceil_div(args.in_features, COLUMNS) * COLUMNS));
    for (int64_t row = 0; row < args.rows; row += PREPARED) run_rows(args, row, smaller(PREPARED, args.rows - row), serial);
}

}  // namespace ocrquant::OCRQUANT_ISA

#endif
