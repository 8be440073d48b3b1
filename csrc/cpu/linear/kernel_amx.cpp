// Products in AMX tiles: weights in bf16, FP8 or NVFP4, rows in bf16 or in the codes of the weight's format.
#if defined(OCRQUANT_WITH_AMX)

#include "linear/amx_decode.h"
#include "linear/amx_rows.h"
#include "linear/finish.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

constexpr int64_t ROW_BLOCK = 128;           // rows of a task: whole tiles
constexpr int64_t PREPARED = 2 * ROW_BLOCK;  // rows prepared at once
constexpr int64_t MOST_PANELS = 16;          // panels of a task: their sums stay in the second-level cache
constexpr int64_t TOGETHER = 4;              // panels that share a tile of rows
constexpr int64_t STEPS = CHUNK / TILE_COLUMNS;
// Bytes from a panel's decoded tiles to the next one's, where all steps of a chunk are kept and where two are. Were they a multiple
// of 4096, a tile would wait for the stores of other panels' tiles, with which it shares the lower bits of its address: 16 rows of
// NVFP4 then took 30 ns a tile instead of 20 (Xeon family 6 model 207, 2026-11-30).
constexpr int64_t MOST_DECODED = (STEPS + 2) * TILE_BYTES, FEW_DECODED = 2 * TILE_BYTES;
constexpr int64_t SHORT = 4096;                            // bytes of a panel that counts as short
constexpr int64_t SHORT_AHEAD = 1024, LONG_AHEAD = 2048;   // bytes that short panels are fetched ahead, and others

enum Slot { rows_slot = 0, factors_slot = 1, sums_slot = 2, weights_slot = 3 };

struct Job {
    const LinearArgs& args;
    int64_t columns;  // padded to COLUMNS
    int64_t panel_bytes;
    int64_t first_row;     // of the prepared rows
    int64_t rows;          // prepared, with those of zeros
    const uint8_t* x;      // [steps][rows] of LINE bytes, in tiles
    int64_t x_step, x_row; // bytes from 32 columns to the next ones, and from row to row of a tile
    const float* factors;  // [rows], see Sums
    float alpha;           // what the outputs' scales are multiplied by
};

// Some steps of some panels: tile of rows, panels as they lie, their decoded tiles, sums.
struct Place {
    const uint8_t* x;
    int64_t x_step, x_stride;
    const uint8_t* w;
    int64_t w_panel, columns;
    int64_t ahead, ahead_of_next, wraps;  // bytes to what is fetched; from step `wraps` on it is the next panels
    uint8_t* decoded;      // tiles of some steps of each panel
    int64_t decoded_panel;
    const uint8_t* tiles;  // what is multiplied: those, or bf16 panels as they lie
    int64_t tiles_panel;
    int64_t last_slot;  // decoded steps that are kept, minus 1: two where no other tile of rows needs them, to be gentle on the cache
    bool begins;        // sums at zero
    int64_t steps;
    float* c;
    int64_t c_panel;
};

template <Source SOURCE>
inline void decode(const Place& place, int64_t p, int64_t step) {
    if constexpr (SOURCE != Source::again)
        decode_step<SOURCE>(place.w + p * place.w_panel, step, place.columns, step < place.wraps ? place.ahead : place.ahead_of_next,
                            place.decoded + p * place.decoded_panel + (step & place.last_slot) * TILE_BYTES);
}

// Multiplies a step panel by panel. Decoding is a step ahead: a tile is not loaded while its stores are on their way, which would
// wait for each of them. With `decodes` each panel's next step is decoded in between, while the units for tiles are busy.
template <Source SOURCE, int PANELS, int INDEX = 0>
inline void multiply(const Place& place, int64_t step, bool decodes) {
    constexpr int WEIGHTS = weight_tile + INDEX % 3;
    if constexpr (INDEX == 0) load_tile<row_tile>(place.x + step * place.x_step, place.x_stride);
    if (decodes) decode<SOURCE>(place, INDEX, step + 1);
    load_tile<WEIGHTS>(place.tiles + INDEX * place.tiles_panel + (step & place.last_slot) * TILE_BYTES, LINE);
    multiply_tiles<sum_tile + INDEX, row_tile, WEIGHTS>();
    if constexpr (INDEX + 1 < PANELS) multiply<SOURCE, PANELS, INDEX + 1>(place, step, decodes);
}

template <int PANELS, int INDEX = 0>
inline void begin_sums(const Place& place) {
    place.begins ? zero_tile<sum_tile + INDEX>() : load_tile<sum_tile + INDEX>(place.c + INDEX * place.c_panel, LINE);
    if constexpr (INDEX + 1 < PANELS) begin_sums<PANELS, INDEX + 1>(place);
}
template <int PANELS, int INDEX = 0>
inline void store_sums(const Place& place) {
    store_tile<sum_tile + INDEX>(place.c + INDEX * place.c_panel, LINE);
    if constexpr (INDEX + 1 < PANELS) store_sums<PANELS, INDEX + 1>(place);
}

template <Source SOURCE, int PANELS>
void tile(const Place& place) {
    begin_sums<PANELS>(place);
    for (int64_t p = 0; p < PANELS; ++p) decode<SOURCE>(place, p, 0);
    for (int64_t step = 0; step < place.steps; ++step) multiply<SOURCE, PANELS>(place, step, step + 1 < place.steps);
    store_sums<PANELS>(place);
}

template <Source SOURCE>
void any_panels(const Place& place, int64_t panels) {
    switch (panels) {
        case 1: return tile<SOURCE, 1>(place);
        case 2: return tile<SOURCE, 2>(place);
        case 3: return tile<SOURCE, 3>(place);
        case 4: return tile<SOURCE, 4>(place);
    }
}

void tile_of_rows(const Place& place, Source source, int64_t panels) {
    switch (source) {
        case Source::fp8: return any_panels<Source::fp8>(place, panels);
        case Source::fp8_plain: return any_panels<Source::fp8_plain>(place, panels);
        case Source::nvfp4: return any_panels<Source::nvfp4>(place, panels);
        case Source::nvfp4_plain: return any_panels<Source::nvfp4_plain>(place, panels);
        case Source::bf16: return any_panels<Source::bf16>(place, panels);
        case Source::again: return any_panels<Source::again>(place, panels);
    }
}

// All tiles of rows: the first one decodes, the others find what it left.
void all_rows(Place place, Source first, const RowTiles& tiles, int64_t panels) {
    for (int64_t t = 0; t < tiles.count; ++t) {
        tile_of_rows(place, t == 0 ? first : Source::again, panels);
        place.x += tiles.height * LINE;
        place.c += tiles.height * PANEL;
    }
}

Source source_of(LinearKind kind) {
    switch (kind) {
        case LinearKind::fp8: return Source::fp8;
        case LinearKind::fp8_plain: return Source::fp8_plain;
        case LinearKind::nvfp4: return Source::nvfp4;
        case LinearKind::nvfp4_plain: return Source::nvfp4_plain;
        case LinearKind::bf16: break;
    }
    return Source::bf16;
}

// The last columns of bf16 panels, fewer than a tile has: a step of its own.
void last_columns(Place place, const RowTiles& tiles, int64_t panels) {
    const int64_t rest = place.columns % TILE_COLUMNS;
    for (int64_t p = 0; p < panels; ++p) {
        uint8_t* const to = place.decoded + p * place.decoded_panel;
        std::memset(to, 0, size_t(TILE_BYTES));
        std::memcpy(to, place.w + p * place.w_panel + place.steps * TILE_BYTES, size_t(rest * PANEL * 2));
    }
    place.x += place.steps * place.x_step;
    place.tiles = place.decoded;
    place.tiles_panel = place.decoded_panel;
    place.begins &= place.steps == 0;
    place.steps = 1;
    all_rows(place, Source::again, tiles, panels);
}

// Columns `k` to `k` + columns of at most TOGETHER panels, which begin at `w`.
void chunk(const Job& job, const uint8_t* x, const uint8_t* w, const RowTiles& tiles, int64_t k, int64_t columns, int64_t panels, float* c) {
    const Source source = source_of(job.args.kind);
    const bool is_bf16 = source == Source::bf16;
    const int64_t steps = is_bf16 ? columns / TILE_COLUMNS : ceil_div(columns, TILE_COLUMNS);
    const int64_t w_step = step_bytes(source), fetched = smaller(steps, (job.panel_bytes <= SHORT ? SHORT_AHEAD : LONG_AHEAD) / w_step);
    Place place;
    place.x = x + k / TILE_COLUMNS * job.x_step;
    place.x_step = job.x_step;
    place.x_stride = job.x_row;
    place.w = w + panel_bytes(job.args.kind, k);
    place.w_panel = job.panel_bytes;
    place.columns = columns;
    place.wraps = steps - fetched;
    place.ahead = fetched * w_step;
    place.ahead_of_next = TOGETHER * job.panel_bytes - place.wraps * w_step;
    place.decoded = static_cast<uint8_t*>(scratch(weights_slot, TOGETHER * MOST_DECODED));
    place.decoded_panel = tiles.count > 1 ? MOST_DECODED : FEW_DECODED;
    place.tiles = is_bf16 ? place.w : place.decoded;
    place.tiles_panel = is_bf16 ? place.w_panel : place.decoded_panel;
    place.last_slot = is_bf16 ? ~int64_t(0) : tiles.count > 1 ? STEPS - 1 : 1;
    place.begins = k == 0;
    place.steps = steps;
    place.c = c;
    place.c_panel = tiles.panel_sums();
    if (steps > 0) all_rows(place, source, tiles, panels);
    if (is_bf16 && columns % TILE_COLUMNS != 0) last_columns(place, tiles, panels);
}

TileSettings settings_of(const RowTiles& tiles) {
    TileSettings settings;
    for (int i = 0; i < TOGETHER; ++i) settings.set(sum_tile + i, tiles.height, LINE);
    settings.set(row_tile, tiles.height, LINE);
    for (int i = 0; i < 3; ++i) settings.set(weight_tile + i, PANEL, LINE);
    return settings;
}

// Rows begin .. begin + rows of the prepared ones times some panels, all columns. Sums of one tile of rows stay in tiles over all
// columns; of more, the rows' chunk stays in the second-level cache. Panels are finished while the next ones are multiplied.
void run_task(const Job& job, int64_t begin, int64_t rows, int64_t first_panel, int64_t panels) {
    const ExactSubnormals guard;
    const RowTiles tiles(rows);
    const int64_t step = tiles.count == 1 ? job.columns : CHUNK, panel_sums = tiles.panel_sums();
    const int64_t kept = step < job.columns ? panels : 2 * TOGETHER;
    float* const sums = static_cast<float*>(scratch(sums_slot, kept * panel_sums * int64_t(sizeof(float))));
    const auto finish = [&](int64_t p) {
        const Sums group{sums + p % kept * panel_sums, panel_sums, rows, job.first_row + begin, job.factors + begin};
        finish_panels(job.args, group, first_panel + p, smaller(TOGETHER, panels - p), job.alpha);
    };
    const Tiles in_use(settings_of(tiles));
    for (int64_t k = 0; k < job.columns; k += step) {
        for (int64_t p = 0; p < panels; p += TOGETHER) {
            const uint8_t* const w = job.args.weight + (first_panel + p) * job.panel_bytes;
            chunk(job, job.x + begin * LINE, w, tiles, k, smaller(step, job.columns - k), smaller(TOGETHER, panels - p),
                  sums + p % kept * panel_sums);
            if (k + step >= job.columns && p > 0) finish(p - TOGETHER);
        }
    }
    finish((panels - 1) / TOGETHER * TOGETHER);
}

// All panels of the prepared rows.
void run_tasks(const Job& job, int64_t rows, bool serial) {
    const int64_t panels = ceil_div(job.args.out_features, PANEL), row_blocks = ceil_div(rows, ROW_BLOCK);
    // A task sets the tiles anew, which takes 0.1 us (Xeon family 6 model 207, 2026-11-30): on one thread there is no need of many,
    // where sums need not be kept.
    const bool is_one = (serial || num_threads() == 1) && (rows <= TILE_ROWS || job.columns <= CHUNK);
    const int64_t together = is_one ? panels : panels_of_task(panels, job.panel_bytes, row_blocks, TOGETHER, MOST_PANELS);
    const int64_t groups = ceil_div(panels, together);
    parallel_for(row_blocks * groups, serial, [&](int64_t task) {
        const int64_t begin = task / groups * ROW_BLOCK, panel = task % groups * together;
        run_task(job, begin, smaller(ROW_BLOCK, rows - begin), panel, smaller(together, panels - panel));
    });
}

// The rows of a piece, whose last block begins at `last`, to `x`; of blocks before it all tiles are full.
void prepare(const LinearArgs& args, int64_t first_row, int64_t rows, int64_t last, uint8_t* x, int64_t step, float* factors, bool serial) {
    const RowTiles last_tiles(rows - last);
    const int64_t full = last / TILE_ROWS;
    parallel_for(full + last_tiles.count, serial, [&](int64_t t) {
        const ExactSubnormals guard;
        const int64_t height = t < full ? TILE_ROWS : last_tiles.height, begin = t < full ? t * TILE_ROWS : last + (t - full) * height;
        const int64_t count = smaller(height, rows - begin);
        prepare_tiles(args, first_row + begin, count, x + begin * LINE, step, height);
    });
    const float* const scales = reinterpret_cast<const float*>(args.x_scale);
    const float same = args.kind == LinearKind::nvfp4 ? power_of_two(NVFP4_DOWN - NVFP4_UP) : 1.0f;
    for (int64_t r = 0; r < rows; ++r) factors[r] = args.kind == LinearKind::fp8 ? scales[first_row + r] : same;
}

void run_rows(const LinearArgs& args, int64_t first_row, int64_t rows, bool serial) {
    const int64_t columns = ceil_div(args.in_features, COLUMNS) * COLUMNS, steps = ceil_div(columns, TILE_COLUMNS);
    const int64_t last = (rows - 1) / ROW_BLOCK * ROW_BLOCK;
    const RowTiles last_tiles(rows - last);
    const int64_t padded = last + last_tiles.rows(), step_bytes = padded * LINE + (padded % 64 == 0 ? LINE : 0);
    if (lie_in_tiles(args)) {
        const float factors[TILE_ROWS] = {};  // of no use to bf16
        const Job job{args, columns, panel_bytes(args.kind, columns), 0, rows, args.x, LINE, columns * 2, factors, 1.0f};
        return run_tasks(job, rows, serial);
    }
    uint8_t* const x = static_cast<uint8_t*>(scratch(rows_slot, steps * step_bytes));
    float* const factors = static_cast<float*>(scratch(factors_slot, rows * int64_t(sizeof(float))));
    prepare(args, first_row, rows, last, x, step_bytes, factors, serial || rows * columns < (1 << 16));
    const float alpha = args.kind == LinearKind::nvfp4 ? 1.0f / args.encode_scale[0] : 1.0f;
    run_tasks(Job{args, columns, panel_bytes(args.kind, columns), first_row, padded, x, step_bytes, LINE, factors, alpha}, rows, serial);
}

}  // namespace

void linear_tiles(const LinearArgs& args) {
    const bool serial = is_small(args, panel_bytes(args.kind, ceil_div(args.in_features, COLUMNS) * COLUMNS));
    for (int64_t row = 0; row < args.rows; row += PREPARED) run_rows(args, row, smaller(PREPARED, args.rows - row), serial);
}

}  // namespace ocrquant::OCRQUANT_ISA

#endif
