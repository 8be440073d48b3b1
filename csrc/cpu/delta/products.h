// A small matrix product with both operands where they lie. Include after isa.h.
#pragma once

#include "delta/lanes.h"

namespace ocrquant::OCRQUANT_ISA::delta {

// c [rows, columns] = start + sum over t < terms of a(row, t) * b(t, column), summed in order of t by fused steps, whatever
// the numbers of rows and columns. `a` is reached by strides, `b` has dense rows; columns is a multiple of LANES. The start
// is 0, c itself, or c times `scale`.
enum class Start { zero, keep, scale };

struct Product {
    float* c;
    int64_t c_stride;
    int64_t rows, columns;
    Start start;
    float scale;
    const float* a;
    int64_t a_row, a_term;
    const float* b;
    int64_t b_term;
    int64_t terms;
};

template <int ROWS, int WIDTH>
inline void product_tile(const Product& p, int64_t row, int64_t column) {
    Lanes sums[ROWS][WIDTH];
    float* c = p.c + row * p.c_stride + column;
    for (int r = 0; r < ROWS; ++r) {
        for (int w = 0; w < WIDTH; ++w) {
            const float* from = c + r * p.c_stride + w * LANES;
            sums[r][w] = p.start == Start::zero ? all(0.f) : load(from);
            if (p.start == Start::scale) sums[r][w] *= all(p.scale);
        }
    }
    const float* a = p.a + row * p.a_row;
    const float* b = p.b + column;
    for (int64_t t = 0; t < p.terms; ++t, a += p.a_term, b += p.b_term) {
        Lanes parts[WIDTH];
        for (int w = 0; w < WIDTH; ++w) parts[w] = load(b + w * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const Lanes factor = all(a[r * p.a_row]);
            for (int w = 0; w < WIDTH; ++w) sums[r][w] = fma(factor, parts[w], sums[r][w]);
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int w = 0; w < WIDTH; ++w) store(c + r * p.c_stride + w * LANES, sums[r][w]);
    }
}

// Registers: six rows by two, the terms of b and one factor fill the sixteen of AVX2; AVX-512 has twice as many.
constexpr int WIDTH = LANES == 16 ? 4 : 2;

template <int ROWS>
inline void product_rows(const Product& p, int64_t row, int64_t first, int64_t last) {
    int64_t column = first;
    for (; column + WIDTH * LANES <= last; column += WIDTH * LANES) product_tile<ROWS, WIDTH>(p, row, column);
    for (; column < last; column += LANES) product_tile<ROWS, 1>(p, row, column);
}

inline void product_block(const Product& p, int64_t first, int64_t last) {
    int64_t row = 0;
    for (; row + 6 <= p.rows; row += 6) product_rows<6>(p, row, first, last);
    for (; row + 4 <= p.rows; row += 4) product_rows<4>(p, row, first, last);
    for (; row + 2 <= p.rows; row += 2) product_rows<2>(p, row, first, last);
    for (; row < p.rows; ++row) product_rows<1>(p, row, first, last);
}

// Goes along the rows of c, once through it: for a large c and few terms.
inline void accumulate_by_rows(const Product& p) { product_block(p, 0, p.columns); }

// Goes down the columns, so that a large b is read once, a few columns at a time.
inline void accumulate(const Product& p) {
    for (int64_t first = 0; first < p.columns; first += WIDTH * LANES) {
        const int64_t last = first + WIDTH * LANES < p.columns ? first + WIDTH * LANES : p.columns;
        product_block(p, first, last);
    }
}

}  // namespace ocrquant::OCRQUANT_ISA::delta
