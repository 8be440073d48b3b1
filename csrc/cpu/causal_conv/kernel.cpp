// Causal depthwise convolution of four taps and SiLU over rows of many requests, behind the last inputs of each.
//
// A task is a block of channels for all requests: the block's weights are brought into rows once. The sum is rounded to bf16
// before SiLU, and SiLU after it.
#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "common/silu_table.h"
#include "common/vec.h"
#include "causal_conv/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/bf16_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

constexpr int64_t TAPS = 4, BEFORE = TAPS - 1, BLOCK = 256;

struct Block {
    int64_t first, count;
    float weight[TAPS][BLOCK];
    uint16_t before[BEFORE][BLOCK];  // the inputs before the request's first row
};

#if defined(OCRQUANT_WITH_AVX512)

// Sixteen channels' weights of a tap are every fourth of 64 numbers; each goes to the upper half of its fp32.
void spread_taps(const uint16_t* weight, Block& block) {
    const __m512i every_fourth = _mm512_slli_epi32(_mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60), 16);
    for (int64_t c = 0; c < block.count; c += 2 * VEC) {
        const __m512i low = _mm512_loadu_si512(weight + c * TAPS), high = _mm512_loadu_si512(weight + c * TAPS + LINE_NUMBERS);
        for (int64_t tap = 0; tap < TAPS; ++tap) {
            const __m512i places = _mm512_add_epi32(every_fourth, _mm512_set1_epi32(int(tap) << 16));
            const __m512i taps = _mm512_maskz_permutex2var_epi16(0xaaaaaaaau, low, places, high);
            _mm512_storeu_ps(block.weight[tap] + c, _mm512_castsi512_ps(taps));
        }
    }
}

// As below, and SiLU of the sums, which are places in its table.
void convolve(const Block& block, const uint16_t* x, int64_t x_stride, int64_t count, uint16_t* out, int64_t out_stride) {
    const uint16_t* const silu = silu_table();
    for (int64_t c = 0; c < block.count; c += 2 * VEC) {
        __m512 weight[TAPS], input[TAPS];
        for (int64_t tap = 0; tap < TAPS; ++tap) weight[tap] = _mm512_loadu_ps(block.weight[tap] + c);
        for (int64_t i = 0; i < BEFORE; ++i) input[i] = widen16(block.before[i] + c);
        for (int64_t t = 0; t < count; ++t) {
            input[BEFORE] = widen16(x + t * x_stride + c);
            __m512 sum = _mm512_setzero_ps();
            for (int64_t tap = 0; tap < TAPS; ++tap) sum = sum + weight[tap] * input[tap];
            const __m512i entries = looked_up(silu, _mm512_cvtepu16_epi32(rounded16(sum)));
            _mm256_storeu_si256((__m256i*)(out + t * out_stride + c), _mm512_cvtepi32_epi16(entries));
            for (int64_t i = 0; i < BEFORE; ++i) input[i] = input[i + 1];
        }
    }
}

#else

void spread_taps(const uint16_t* weight, Block& block) {
    for (int64_t c = 0; c < block.count; ++c) {
        for (int64_t tap = 0; tap < TAPS; ++tap) block.weight[tap][c] = from_bf16(weight[c * TAPS + tap]);
    }
}

// Sixteen channels of an input or a tap, as fp32.
struct Sixteen {
    F32 low, high;

    static Sixteen of(const float* from) { return {load_as<F32>(from), load_as<F32>(from + VEC)}; }
    static Sixteen of(const uint16_t* from) { return {widen(load_as<U16>(from)), widen(load_as<U16>(from + VEC))}; }

    void add(const Sixteen& a, const Sixteen& b) {
        low += a.low * b.low;
        high += a.high * b.high;
    }
};

// SiLU of the rounded sums of `count` rows: channels outside and rows inside, so that an input is read and widened once for its four taps.
void convolve(const Block& block, const uint16_t* x, int64_t x_stride, int64_t count, uint16_t* out, int64_t out_stride) {
    for (int64_t c = 0; c < block.count; c += 2 * VEC) {
        Sixteen weight[TAPS], input[TAPS];
        for (int64_t tap = 0; tap < TAPS; ++tap) weight[tap] = Sixteen::of(block.weight[tap] + c);
        for (int64_t i = 0; i < BEFORE; ++i) input[i] = Sixteen::of(block.before[i] + c);
        for (int64_t t = 0; t < count; ++t) {
            input[BEFORE] = Sixteen::of(x + t * x_stride + c);
            Sixteen sum{splat(0.f), splat(0.f)};
            for (int64_t tap = 0; tap < TAPS; ++tap) sum.add(weight[tap], input[tap]);
            const U16x16 both = narrow(sum.low, sum.high);
            memcpy(out + t * out_stride + c, &both, sizeof(both));
            for (int64_t i = 0; i < BEFORE; ++i) input[i] = input[i + 1];
        }
    }
    for (int64_t t = 0; t < count; ++t) silu_row(out + t * out_stride, block.count, out + t * out_stride);
}

#endif

void convolve_request(const CausalConvArgs& args, int64_t request, Block& block) {
    const int64_t first = args.q_start[request], count = args.q_start[request + 1] - first, slot = args.slots[request];
    const size_t bytes = size_t(block.count) * sizeof(uint16_t);
    if (count <= 0) return;
    if (slot < 0) {
        for (int64_t t = 0; t < count; ++t) memset(args.out + (first + t) * args.channels + block.first, 0, bytes);
        return;
    }
    uint16_t* tail = args.tail + slot * BEFORE * args.channels + block.first;
    for (int64_t i = 0; i < BEFORE; ++i) {
        if (args.fresh[request] != 0) memset(block.before[i], 0, bytes);
        else memcpy(block.before[i], tail + i * args.channels, bytes);
    }
    const uint16_t* x = args.x + first * args.x_stride + block.first;
    const auto input = [&](int64_t t) { return t < BEFORE ? block.before[t] : x + (t - BEFORE) * args.x_stride; };
    uint16_t* const out = args.out + first * args.channels + block.first;
    convolve(block, x, args.x_stride, count, out, args.channels);
    if (args.record == nullptr) {
        for (int64_t i = 0; i < BEFORE; ++i) memcpy(tail + i * args.channels, input(count + i), bytes);
        return;
    }
    uint16_t* record = args.record + slot * args.window * args.channels + block.first;
    for (int64_t t = 0; t < count && t < args.window; ++t)
        memcpy(record + t * args.channels, x + t * args.x_stride, bytes);
}

}  // namespace

void causal_conv(const CausalConvArgs& args) {
    const int64_t rows = args.q_start[args.requests] - args.q_start[0];
    parallel_for((args.channels + BLOCK - 1) / BLOCK, rows * args.channels < 20000, [&](int64_t chunk) {
        Block block;
        block.first = chunk * BLOCK;
        block.count = args.channels - block.first < BLOCK ? args.channels - block.first : BLOCK;
        spread_taps(args.weight + block.first * TAPS, block);
        for (int64_t request = 0; request < args.requests; ++request) convolve_request(args, request, block);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
