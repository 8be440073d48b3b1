// How a producer's rows become the forms of an operand. Eight columns a thread; two lanes share an NVFP4 block.
//
// Without a scale by token nothing has to wait for a whole row, and a block of threads takes PART_COLUMNS of one. With one, a
// block takes a row, keeps its rounded values in shared memory, and encodes them once their largest magnitude is known.
#pragma once

#include "common/scales.cuh"
#include "produce/operand.cuh"

namespace ocrquant {

constexpr int TURN = 8, PART_THREADS = 256, ROW_THREADS = 1024, PART_COLUMNS = TURN * PART_THREADS;

// Up to eight bf16 of a row, zeros behind them.
struct Eight {
    uint32_t pairs[4];
};

OCRQUANT_BOTH Eight eight_of(uint4 x) { return {{x.x, x.y, x.z, x.w}}; }

OCRQUANT_DEVICE Eight load_eight(const uint16_t* from, int64_t count, bool is_wide) {
    if (is_wide && count >= TURN) return eight_of(load_once(from));
    Eight x{{0, 0, 0, 0}};
    for (int i = 0; i < TURN; ++i) {
        if (i < count) x.pairs[i / 2] |= uint32_t(from[i]) << 16 * (i % 2);
    }
    return x;
}

OCRQUANT_DEVICE void store_eight(uint16_t* to, const Eight& x, int64_t count, bool is_wide) {
    if (is_wide && count >= TURN) {
        *reinterpret_cast<uint4*>(to) = uint4{x.pairs[0], x.pairs[1], x.pairs[2], x.pairs[3]};
        return;
    }
    for (int i = 0; i < TURN; ++i) {
        if (i < count) to[i] = uint16_t(x.pairs[i / 2] >> 16 * (i % 2));
    }
}

OCRQUANT_DEVICE void store_codes(uint8_t* to, const uint32_t (&codes)[2], int64_t count, bool is_wide) {
    if (is_wide && count >= TURN) {
        *reinterpret_cast<uint2*>(to) = uint2{codes[0], codes[1]};
        return;
    }
    for (int i = 0; i < TURN; ++i) {
        if (i < count) to[i] = uint8_t(codes[i / 4] >> 8 * (i % 4));
    }
}

OCRQUANT_DEVICE uint32_t largest_magnitude(const Eight& x) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = larger_halves(largest, x.pairs[i] & 0x7fff7fffu);
    return (largest & 0xffffu) > (largest >> 16) ? largest & 0xffffu : largest >> 16;
}

OCRQUANT_DEVICE void emit_fp8(const OperandOut& out, int64_t at, const Eight& y, int64_t count, Divisor scale) {
    uint32_t codes[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) codes[i] = token_codes(y.pairs[2 * i], scale) | token_codes(y.pairs[2 * i + 1], scale) << 16;
    store_codes(out.fp8 + at, codes, count, is_aligned(out.fp8, 0) && out.width % TURN == 0);
}

// All lanes of a warp come here: a block's scale is that of two lanes.
OCRQUANT_DEVICE void emit_nvfp4(const OperandOut& out, int64_t row, int64_t column, const Eight& y, int64_t count,
                                float encode_scale) {
    uint32_t amax = largest_magnitude(y);
    const uint32_t other = shuffle_xor(amax, 1);
    amax = amax > other ? amax : other;
    if (count <= 0) return;
    const BlockScale scale = block_scale(amax, encode_scale);
    const uint32_t codes = block_codes(y.pairs, scale.divisor);
    *reinterpret_cast<uint32_t*>(out.nvfp4 + (row * out.width + column) / 2) = codes;
    if (column % BLOCK != 0) return;
    const int64_t scales = out.width / BLOCK, index = column / BLOCK;
    out.nvfp4_scale[out.is_swizzled ? swizzled_offset(row, index, scales) : row * scales + index] = uint8_t(scale.code);
}

// Zeros for the padding of the swizzled layout: whole rows behind the last one, and up to three scales behind a row.
OCRQUANT_DEVICE void pad_scales(const OperandOut& out, int64_t row, int64_t first, int64_t last, int threads) {
    const int64_t scales = out.width / BLOCK;
    for (int64_t s = first + threadIdx.x; s < last; s += threads) out.nvfp4_scale[swizzled_offset(row, s, scales)] = 0;
}

// Largest of all threads' values.
OCRQUANT_DEVICE uint32_t largest_of_block(uint32_t value, uint32_t* shared, int threads) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const uint32_t other = shuffle_xor(value, lanes);
        value = value > other ? value : other;
    }
    const int thread = threadIdx.x;
    if (thread % 32 == 0) shared[thread / 32] = value;
    barrier();
    for (int warp = 0; warp < threads / 32; ++warp) value = value > shared[warp] ? value : shared[warp];
    return value;
}

// A source makes eight finished columns of a row: source.eight(row, column, count), count of them inside the row, all lanes of a
// warp together.
template <class Source, bool BY_TOKEN>
__global__ void __launch_bounds__(BY_TOKEN ? ROW_THREADS : PART_THREADS) produce(Source source, OperandOut out, int threads) {
    OCRQUANT_DYNAMIC_SHARED(raw);
    const int64_t row = blockIdx.x, scales = out.width / BLOCK;
    const int64_t first = BY_TOKEN ? 0 : int64_t(blockIdx.y) * PART_COLUMNS;
    const int64_t last = BY_TOKEN || first + PART_COLUMNS > out.width ? out.width : first + PART_COLUMNS;
    const bool is_last_part = last == out.width, is_padded = out.nvfp4 != nullptr && out.is_swizzled;
    if (is_padded && is_last_part) pad_scales(out, row, scales, swizzled_scales(scales), threads);
    if (row >= out.rows) return pad_scales(out, row, first / BLOCK, last / BLOCK, threads);
    const bool is_wide = is_aligned(out.plain, 2 * out.width);
    const float encode_scale = out.nvfp4 != nullptr ? *out.encode_scale : 0.0f;
    const Divisor fixed = !BY_TOKEN && out.fp8 != nullptr ? divisor_of(*out.fp8_static) : Divisor{0.0f, 0.0f};
    Eight* const kept = reinterpret_cast<Eight*>(raw + 128);
    uint32_t amax = 0;
    for (int64_t begin = first; begin < last; begin += TURN * threads) {
        const int64_t column = begin + TURN * threadIdx.x, count = last - column;
        const Eight y = source.eight(row, column, count);
        if (out.plain != nullptr) store_eight(out.plain + row * out.width + column, y, count, is_wide);
        if (out.nvfp4 != nullptr) emit_nvfp4(out, row, column, y, count, encode_scale);
        if constexpr (BY_TOKEN) {
            const uint32_t here = largest_magnitude(y);
            amax = amax > here ? amax : here;
            if (count > 0) kept[column / TURN] = y;
        } else {
            if (out.fp8 != nullptr && count > 0) emit_fp8(out, row * out.width + column, y, count, fixed);
        }
    }
    if constexpr (BY_TOKEN) {
        const float scale = token_decode_scale(largest_of_block(amax, reinterpret_cast<uint32_t*>(raw), threads));
        if (threadIdx.x == 0) out.fp8_scale[row] = scale;
        const Divisor divisor = divisor_of(scale);
        for (int64_t column = TURN * threadIdx.x; column < last; column += TURN * threads)
            emit_fp8(out, row * out.width + column, kept[column / TURN], last - column, divisor);
    }
}

template <class Source>
cudaError_t launch_produce(const Source& source, const OperandOut& out, cudaStream_t stream) {
    if (out.rows <= 0 || out.width <= 0) return cudaSuccess;
    const bool by_token = out.fp8 != nullptr && out.fp8_static == nullptr;
    const int64_t rows = out.nvfp4 != nullptr && out.is_swizzled ? swizzled_rows(out.rows) : out.rows;
    const int64_t parts = by_token ? 1 : ceil_div(out.width, PART_COLUMNS);
    const int64_t most = by_token ? ROW_THREADS : PART_THREADS, wanted = ceil_div(out.width, TURN * 32) * 32;
    const int threads = int(wanted < most ? wanted : most);
    if (rows > 0x7fffffff || parts > MOST_PARTS) return cudaErrorInvalidValue;
    const dim3 grid{unsigned(rows), unsigned(parts)};
    if (!by_token) return launch(produce<Source, false>, grid, threads, 0, stream, source, out, threads);
    const size_t kept = 128 + size_t(ceil_div(out.width, TURN)) * sizeof(Eight);
    return launch(produce<Source, true>, grid, threads, kept, stream, source, out, threads);
}

}  // namespace ocrquant
