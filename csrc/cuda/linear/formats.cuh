// Sixteen bytes of codes as pairs of bf16, in the order in which shifts find them, and rows of bf16 in the same order.
//
// Codes become bf16 by moving their bits to where bf16 has sign, exponent and fraction; one product then makes up for the
// difference of the exponents' biases, subnormals included, and takes the block scale along. Every result is a bf16 number.
#pragma once

#include "common/scales.cuh"
#include "linear/arguments.cuh"

namespace ocrquant {

// Each half of a pair times the half of another.
OCRQUANT_BOTH uint32_t times_bf16(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
    uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
#else
    return pair_bf16(low_half(a) * low_half(b), high_half(a) * high_half(b));
#endif
}

// The low halves of two registers, and the high ones.
OCRQUANT_BOTH uint32_t lows(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
OCRQUANT_BOTH uint32_t highs(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }

// E2M1. A word holds inputs 0 to 7; pair i is inputs i and i + 4.
struct Fp4 {
    static constexpr int INPUTS = 32;  // of sixteen bytes
    // Weights come out 2^-8 of their size: the whole factor 2^126 times the largest scale is no bf16 number.
    static constexpr float UNDONE = 256.0f;

    // Codes of a lane's two blocks.
    struct Scales {
        uint32_t codes;
    };

    OCRQUANT_DEVICE static Scales scales(const LinearArgs& args, int64_t output, int64_t input) {
        return {*reinterpret_cast<const uint16_t*>(args.block_scale + (output * args.inputs + input) / BLOCK)};
    }

    OCRQUANT_BOTH static uint32_t factors(const Scales& scales, int block) {
        const float factor = from_e4m3(scales.codes >> 8 * block & 0x7fu) * 0x1p118f;
        return pair_bf16(factor, factor);
    }

    // Both registers of a step's fragment; two steps a word.
    OCRQUANT_BOTH static void weights(const uint32_t (&words)[4], const Scales& scales, int step, uint32_t (&b)[2]) {
        const uint32_t word = words[step / 2] >> 8 * (step % 2);
        const uint32_t factor = factors(scales, step / 4);
        b[0] = times_bf16((word << 12 & 0x80008000u) | (word << 6 & 0x01c001c0u), factor);
        b[1] = times_bf16((word << 8 & 0x80008000u) | (word << 2 & 0x01c001c0u), factor);
    }

    // What of eight inputs of a row belongs to the same step.
    OCRQUANT_BOTH static void inputs(const uint32_t (&x)[4], int step, uint32_t& first, uint32_t& second) {
        first = lows(x[step % 2], x[step % 2 + 2]);
        second = highs(x[step % 2], x[step % 2 + 2]);
    }
};

// E4M3. A word holds inputs 0 to 3; pair i is inputs i and i + 2. NaN codes come out as numbers: the channel's scale is NaN then.
struct Fp8 {
    static constexpr int INPUTS = 16;
    static constexpr float UNDONE = 1.0f;

    struct Scales {};

    OCRQUANT_DEVICE static Scales scales(const LinearArgs&, int64_t, int64_t) { return {}; }

    // One step a word.
    OCRQUANT_BOTH static void weights(const uint32_t (&words)[4], const Scales&, int step, uint32_t (&b)[2]) {
        constexpr uint32_t FACTOR = 0x7b807b80u;  // 2^120, twice
        const uint32_t word = words[step], even = word << 8;
        b[0] = times_bf16((even & 0x80008000u) | (even >> 4 & 0x07f007f0u), FACTOR);
        b[1] = times_bf16((word & 0x80008000u) | (word >> 4 & 0x07f007f0u), FACTOR);
    }

    OCRQUANT_BOTH static void inputs(const uint32_t (&x)[4], int step, uint32_t& first, uint32_t& second) {
        first = lows(x[step % 2 * 2], x[step % 2 * 2 + 1]);
        second = highs(x[step % 2 * 2], x[step % 2 * 2 + 1]);
    }
};

}  // namespace ocrquant
