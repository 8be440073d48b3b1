// How a producer walks its rows: each row is computed where it will lie and is written into the operand's forms while it
// is in cache. Few wide rows are cut into parts, so that one token also uses all threads; the bytes are the same.
#pragma once

#include "common/emit.h"
#include "common/pool.h"

namespace ocrquant::OCRQUANT_ISA {

// Below this many elements waking threads costs more than it saves (1.5 to 6 ns an element on an AVX2 core at 2 GHz).
constexpr int64_t SERIAL_ELEMENTS = 12288;
constexpr int64_t PART_ELEMENTS = 1024;

// f(first, last) for some rows at a time.
template <class Function>
inline void for_some_rows(int64_t rows, int64_t width, Function f) {
    const int64_t step = width < PART_ELEMENTS ? PART_ELEMENTS / (width > 0 ? width : 1) : 1;
    parallel_for((rows + step - 1) / step, rows * width < SERIAL_ELEMENTS, [&](int64_t chunk) {
        f(chunk * step, (chunk + 1) * step < rows ? (chunk + 1) * step : rows);
    });
}

// f(r) for each row, several rows a job.
template <class Function>
inline void for_rows(int64_t rows, int64_t width, Function f) {
    for_some_rows(rows, width, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) f(r);
    });
}

// compute(first, last, y): some whole rows of the result, bf16.
template <class Compute>
inline void produce_some_rows(int64_t rows, int64_t width, const OperandRows& out, Compute compute) {
    for_some_rows(rows, width, [&](int64_t first, int64_t last) {
        uint16_t* const y = out.plain ? out.plain + first * width : static_cast<uint16_t*>(scratch(1, (last - first) * width * 2));
        compute(first, last, y);
        emit_rows(out, first, last - first, y, width);
    });
}

// compute(r, y): the whole row r of the result, bf16.
template <class Compute>
inline void produce_rows(int64_t rows, int64_t width, const OperandRows& out, Compute compute) {
    produce_some_rows(rows, width, out, [&](int64_t first, int64_t last, uint16_t* y) {
        for (int64_t r = first; r < last; ++r) compute(r, y + (r - first) * width);
    });
}

// compute(r, first, last, y): columns first..last of row r, to y[first]..; `unit` columns belong together.
template <class Compute>
inline void produce_parts(int64_t rows, int64_t width, int64_t unit, const OperandRows& out, Compute compute) {
    const int64_t multiple = unit % BLOCK ? unit * BLOCK : unit;
    const int64_t part = (PART_ELEMENTS + multiple - 1) / multiple * multiple, parts = (width + part - 1) / part;
    if (rows >= num_threads() || parts <= 1 || rows * width < SERIAL_ELEMENTS) {
        produce_rows(rows, width, out, [&](int64_t r, uint16_t* y) { compute(r, int64_t(0), width, y); });
        return;
    }
    uint16_t* const all = out.plain ? out.plain : static_cast<uint16_t*>(scratch(0, rows * width * 2));
    uint16_t* const largest = static_cast<uint16_t*>(scratch(2, rows * parts * 2));
    parallel_for(rows * parts, false, [&](int64_t job) {
        const int64_t r = job / parts, first = job % parts * part, last = first + part < width ? first + part : width;
        uint16_t* const y = all + r * width;
        compute(r, first, last, y);
        if (out.fp8) largest[job] = largest_magnitude(y + first, last - first);
        if (out.nvfp4)
            emit_nvfp4(y + first, last - first, *out.encode_scale, out.nvfp4 + (r * width + first) / 2,
                       out.nvfp4_scale + (r * width + first) / BLOCK);
    });
    if (!out.fp8) return;
    for (int64_t r = 0; r < rows; ++r) {
        uint16_t most = 0;
        for (int64_t p = 0; p < parts; ++p) most = most < largest[r * parts + p] ? largest[r * parts + p] : most;
        out.fp8_scale[r] = token_decode_scale(most);
    }
    parallel_for(rows * parts, false, [&](int64_t job) {
        const int64_t r = job / parts, first = job % parts * part, last = first + part < width ? first + part : width;
        emit_fp8(all + r * width + first, last - first, out.fp8_scale[r], out.fp8 + r * width + first);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
