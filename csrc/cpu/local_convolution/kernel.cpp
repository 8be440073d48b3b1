// Each row of a block with those before it, by kernels that the row itself chose: fp32 products summed from the row's own tap
// backwards, rounded once.
#include "common/isa.h"
#include "common/pool.h"
#include "common/rows.h"
#include "local_convolution/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

// A row, the taps that it has, and what its own kernels add to those of all rows.
struct Row {
    const LocalConvolutionArgs& a;
    const uint16_t *y, *added;
    int64_t taps, groups;

    float added_to(int64_t tap, int64_t channel) const { return from_bf16(added[tap * groups + channel / a.group]); }

    // The next VEC channels, all of one group.
    F32 part(int64_t c) const {
        F32 sum{};
        for (int64_t t = 0; t < taps; ++t) {
            const F32 kernel = load_wide(a.base + t * a.width + c) + added_to(t, c);
            sum = sum + kernel * load_wide(y - t * a.width + c);
        }
        return sum;
    }

#if defined(OCRQUANT_WITH_AVX512)
    // 32 channels of one or two groups.
    void line(int64_t c, uint16_t* out) const {
        Wide32 sum = all32(0.0f);
        for (int64_t t = 0; t < taps; ++t) {
            const Wide32 own{_mm512_set1_ps(added_to(t, c)), _mm512_set1_ps(added_to(t, c + LINE_NUMBERS / 2))};
            sum = sum + (widen32(a.base + t * a.width + c) + own) * widen32(y - t * a.width + c);
        }
        store32(out, sum);
    }
#endif

    float one(int64_t c) const {
        float sum = 0.f;
        for (int64_t t = 0; t < taps; ++t)
            sum += (from_bf16(a.base[t * a.width + c]) + added_to(t, c)) * from_bf16(y[c - t * a.width]);
        return sum;
    }
};

}  // namespace

void local_convolution(const LocalConvolutionArgs& a) {
    const int64_t groups = a.width / a.group;
    const bool is_even = a.group % VEC == 0;
    parallel_for(a.rows, a.rows * a.width * a.taps < 1 << 16, [&](int64_t r) {
        const int64_t before = r % a.block, taps = a.taps <= before ? a.taps : before + 1;
        const Row row{a, a.y + r * a.width, a.added + r * a.added_row, taps, groups};
        uint16_t* const out = a.out + r * a.width;
        int64_t c = 0;
#if defined(OCRQUANT_WITH_AVX512)
        for (; a.group % (LINE_NUMBERS / 2) == 0 && c + LINE_NUMBERS <= a.width; c += LINE_NUMBERS) row.line(c, out + c);
#endif
        for (; is_even && c + TURN <= a.width; c += TURN) store_turn(each([&](int i) { return row.part(c + i * VEC); }), out + c);
        for (; c < a.width; ++c) out[c] = to_bf16(row.one(c));
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
