// Products of NVFP4 codes with NVFP4 codes.
#include "linear/nvfp4_tiles.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "linear/finish.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

constexpr int64_t ROW_BLOCK = 128;      // rows that meet one decoded chunk
constexpr int64_t PREPARED = 1024;      // rows prepared at once
constexpr int64_t MOST_PANELS = 16;     // panels of a task: their sums stay in the second-level cache

constexpr int64_t PANELS_OF_LINE = 2;   // whose results in bf16 fill a cache line, which two tasks had better not share

enum Slot { rows_slot = 0, sums_slot = 2, weights_slot = 3 };

struct Job {
    const LinearArgs& args;
    int64_t panel_bytes;
    int64_t first_row;  // of the prepared rows
    int64_t rows;       // prepared
    const RowBlock* x;  // [chunks][rows][CHUNK_BLOCKS]
    float alpha;        // reciprocal of the rows' global scale
    const float* ones;  // [ROW_BLOCK]
};

void tile_rows(int64_t rows, const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    switch (rows) {
        case 1: return nvfp4_tile<1>(x, w, blocks, c);
        case 2: return nvfp4_tile<2>(x, w, blocks, c);
#if !defined(OCRQUANT_WITH_AVX2)
        case 3: return nvfp4_tile<3>(x, w, blocks, c);
        case 4: return nvfp4_tile<4>(x, w, blocks, c);
#endif
#if defined(OCRQUANT_WITH_AVX512)
        case 5: return nvfp4_tile<5>(x, w, blocks, c);
        case 6: return nvfp4_tile<6>(x, w, blocks, c);
        case 7: return nvfp4_tile<7>(x, w, blocks, c);
        case 8: return nvfp4_tile<8>(x, w, blocks, c);
#endif
    }
}

#if defined(OCRQUANT_WITH_AVX2)

void decoded_rows(int64_t rows, const RowBlock* x, const DecodedBlock* w, int64_t blocks, float* c) {
    switch (rows) {
        case 1: return decoded_tile<1>(x, w, blocks, c);
        case 2: return decoded_tile<2>(x, w, blocks, c);
        case 3: return decoded_tile<3>(x, w, blocks, c);
        case 4: return decoded_tile<4>(x, w, blocks, c);
    }
}

#endif

// All rows of a block over one chunk of one panel, in tiles of nearly equal height.
void chunk(const RowBlock* x, int64_t rows, const uint8_t* w, int64_t blocks, float* c) {
#if defined(OCRQUANT_WITH_AVX2)
    if (rows <= NVFP4_STREAMED_ROWS) return tile_rows(rows, x, w, blocks, c);
    DecodedBlock decoded[CHUNK_BLOCKS];
    decode_blocks(w, blocks, decoded);
#endif
    const int64_t tiles = ceil_div(rows, NVFP4_TILE_ROWS);
    for (int64_t t = 0; t < tiles; ++t) {
        const int64_t begin = rows * t / tiles, end = rows * (t + 1) / tiles;
#if defined(OCRQUANT_WITH_AVX2)
        decoded_rows(end - begin, x + begin * CHUNK_BLOCKS, decoded, blocks, c + begin * PANEL);
#else
        tile_rows(end - begin, x + begin * CHUNK_BLOCKS, w, blocks, c + begin * PANEL);
#endif
    }
}

// Scales, biases and writes the sums of a task, [panels][rows][16].
void finish_task(const Job& job, const float* sums, int64_t begin, int64_t rows, int64_t first_panel, int64_t panels) {
#if defined(OCRQUANT_WITH_AVX512)
    finish_panels(job.args, Sums{sums, rows * PANEL, rows, job.first_row + begin, job.ones}, first_panel, panels, job.alpha);
#else
    for (int64_t p = 0; p < panels; ++p)
        for (int64_t r = 0; r < rows; ++r)
            finish(job.args, sums + (p * rows + r) * PANEL, job.first_row + begin + r, first_panel + p, 1.0f, job.alpha);
#endif
}

void run_task(const Job& job, int64_t begin, int64_t rows, int64_t first_panel, int64_t panels) {
    const ExactSubnormals guard;
    float* const sums = static_cast<float*>(scratch(sums_slot, panels * rows * PANEL * int64_t(sizeof(float))));
    std::memset(sums, 0, size_t(panels * rows * PANEL) * sizeof(float));
    const int64_t blocks = job.args.in_features / BLOCK;
    const auto one = [&](int64_t b, int64_t p) {
        const RowBlock* const x = job.x + b * job.rows + begin * CHUNK_BLOCKS;
        const uint8_t* const w = job.args.weight + (first_panel + p) * job.panel_bytes + b / GROUP * GROUP_BYTES;
        chunk(x, rows, w, smaller(CHUNK_BLOCKS, blocks - b), sums + p * rows * PANEL);
    };
    if (rows <= NVFP4_TILE_ROWS) {  // one stream over the weights
        for (int64_t p = 0; p < panels; ++p)
            for (int64_t b = 0; b < blocks; b += CHUNK_BLOCKS) one(b, p);
    } else {  // the rows' chunk stays in the second-level cache
        for (int64_t b = 0; b < blocks; b += CHUNK_BLOCKS)
            for (int64_t p = 0; p < panels; ++p) one(b, p);
    }
    finish_task(job, sums, begin, rows, first_panel, panels);
}

void run_rows(const LinearArgs& args, int64_t first_row, int64_t rows, bool serial) {
    const int64_t blocks = args.in_features / BLOCK, chunks = ceil_div(blocks, CHUNK_BLOCKS);
    RowBlock* const x = static_cast<RowBlock*>(scratch(rows_slot, chunks * rows * CHUNK_BLOCKS * int64_t(sizeof(RowBlock))));
    parallel_for(rows, serial || rows * args.in_features < (1 << 16), [&](int64_t r) {
        const ExactSubnormals guard;
        const uint8_t* const codes = args.x + (first_row + r) * (args.in_features / 2);
        const uint8_t* const scales = args.x_scale + (first_row + r) * blocks;
        for (int64_t b = 0; b < blocks; ++b) {
            RowBlock* const chunk = x + b / CHUNK_BLOCKS * rows * CHUNK_BLOCKS + r * CHUNK_BLOCKS;
            prepare_block(codes + b * BLOCK / 2, scales[b], chunk[b % CHUNK_BLOCKS]);
        }
    });
    const int64_t panel_bytes = nvfp4_bytes(blocks);
    float ones[ROW_BLOCK];
    for (int64_t r = 0; r < smaller(rows, ROW_BLOCK); ++r) ones[r] = 1.0f;
    const Job job{args, panel_bytes, first_row, rows, x, 1.0f / args.encode_scale[0], ones};
    const int64_t panels = ceil_div(args.out_features, PANEL), row_blocks = ceil_div(rows, ROW_BLOCK);
    const int64_t step = panels_of_task(panels, panel_bytes, row_blocks, PANELS_OF_LINE, MOST_PANELS);
    const int64_t groups = ceil_div(panels, step);
    parallel_for(row_blocks * groups, serial, [&](int64_t task) {
        const int64_t begin = task / groups * ROW_BLOCK, panel = task % groups * step;
        run_task(job, begin, smaller(ROW_BLOCK, rows - begin), panel, smaller(step, panels - panel));
    });
}

}  // namespace

void linear_nvfp4(const LinearArgs& args) {
    const bool serial = is_small(args, nvfp4_bytes(args.in_features / BLOCK));
    for (int64_t row = 0; row < args.rows; row += PREPARED) run_rows(args, row, smaller(PREPARED, args.rows - row), serial);
}

}  // namespace ocrquant::OCRQUANT_ISA
