// A few rows of bf16 times a weight in NVFP4 or FP8: the weight is read once for sixteen rows.
//
// A block makes OUTPUTS columns of the result. Its warps take turns along the inputs; a lane takes sixteen bytes of codes of an
// output, and the next turn's bytes are asked for before this turn's are used. In a product the order of the inputs is free, so a
// lane's bytes go into its own fragment as they lie. The warps' sums meet in shared memory.
#pragma once

#include "linear/formats.cuh"

namespace ocrquant {

constexpr int LINEAR_THREADS = 256, LINEAR_WARPS = LINEAR_THREADS / 32, LINEAR_ROWS = 16;
constexpr int GROUPS = 4, OUTPUTS = 8 * GROUPS;  // a product makes eight outputs

struct LinearShared {
    float sums[LINEAR_WARPS][LINEAR_ROWS][OUTPUTS];
};

// A lane's codes and scales of one turn.
template <class Format>
struct Codes {
    uint32_t words[GROUPS][4];
    typename Format::Scales scales[GROUPS];

    OCRQUANT_DEVICE void load(const LinearArgs& args, int64_t first, int64_t input) {
        constexpr int CODES_A_BYTE = Format::INPUTS / 16;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            const int64_t output = first + group * 8 + int(threadIdx.x) % 32 / 4;
            uint4 x{0, 0, 0, 0};
            scales[group] = {};
            if (output < args.outputs && input < args.inputs) {
                x = load_once(args.codes + (output * args.inputs + input) / CODES_A_BYTE);
                scales[group] = Format::scales(args, output, input);
            }
            words[group][0] = x.x;
            words[group][1] = x.y;
            words[group][2] = x.z;
            words[group][3] = x.w;
        }
    }
};

// Eight inputs of a row, zeros beyond the rows or the inputs.
OCRQUANT_DEVICE void load_inputs(const LinearArgs& args, int64_t row, int64_t input, uint32_t (&x)[4]) {
    x[0] = x[1] = x[2] = x[3] = 0;
    if (row >= args.rows || input >= args.inputs) return;
    const uint4 found = *reinterpret_cast<const uint4*>(args.x + row * args.x_stride + input);
    x[0] = found.x;
    x[1] = found.y;
    x[2] = found.z;
    x[3] = found.w;
}

template <class Format>
OCRQUANT_DEVICE void multiply(const LinearArgs& args, const Codes<Format>& codes, int64_t row, int64_t input,
                              float (&sums)[GROUPS][4]) {
    constexpr int STEPS = Format::INPUTS / 4;
    uint32_t upper[4], lower[4];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        if (step % 2 == 0) {
            load_inputs(args, row, input + 4 * step, upper);
            load_inputs(args, row + 8, input + 4 * step, lower);
        }
        uint32_t a[4];
        Format::inputs(upper, step, a[0], a[2]);
        Format::inputs(lower, step, a[1], a[3]);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            uint32_t b[2];
            Format::weights(codes.words[group], codes.scales[group], step, b);
            mma_bf16(sums[group], a, b);
        }
    }
}

template <class Format>
OCRQUANT_DEVICE void finish(const LinearArgs& args, const LinearShared& s, int64_t first_row, int64_t first) {
    for (int i = threadIdx.x; i < LINEAR_ROWS * OUTPUTS; i += LINEAR_THREADS) {
        const int64_t row = first_row + i / OUTPUTS, output = first + i % OUTPUTS;
        if (row >= args.rows || output >= args.outputs) continue;
        float sum = 0.0f;
        for (int warp = 0; warp < LINEAR_WARPS; ++warp) sum += s.sums[warp][i / OUTPUTS][i % OUTPUTS];
        sum = sum * Format::UNDONE * args.channel_scale[output];
        if (args.bias != nullptr) {
            const uint32_t half = args.is_bias_float ? 0 : static_cast<const uint16_t*>(args.bias)[output];
            sum += args.is_bias_float ? static_cast<const float*>(args.bias)[output] : low_half(half);
        }
        const int64_t at = row * args.out_stride + output;
        if (args.is_float) {
            static_cast<float*>(args.out)[at] = sum;
        } else {
            static_cast<uint16_t*>(args.out)[at] = uint16_t(pair_bf16(sum, 0.0f));
        }
    }
}

template <class Format>
__global__ void __launch_bounds__(LINEAR_THREADS, 2) small_linear(LinearArgs args) {
    OCRQUANT_SHARED(LinearShared, s);
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    const int64_t first = int64_t(blockIdx.x) * OUTPUTS, first_row = int64_t(blockIdx.y) * LINEAR_ROWS;
    constexpr int64_t STRIDE = int64_t(LINEAR_WARPS) * 4 * Format::INPUTS;
    float sums[GROUPS][4] = {};
    Codes<Format> now, next;
    int64_t input = (warp * 4 + lane % 4) * Format::INPUTS;
    now.load(args, first, input);
    for (int64_t begin = int64_t(warp) * 4 * Format::INPUTS; begin < args.inputs; begin += STRIDE, input += STRIDE) {
        next.load(args, first, input + STRIDE);
        multiply<Format>(args, now, first_row + lane / 4, input, sums);
        now = next;
    }
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            s.sums[warp][lane / 4 + i / 2 * 8][group * 8 + lane % 4 * 2 + i % 2] = sums[group][i];
    }
    barrier();
    finish<Format>(args, s, first_row, first);
}

}  // namespace ocrquant
