// Choosing a token from logits: the largest one, or a draw from the nucleus of their softmax.
//
// The nucleus is found without sorting: the mass of the tokens is summed by the leading bits of their logits, the bits at which
// the sum from above reaches its target are kept, and the next bits follow. Masses are fp32, their sums double.
#include "common/isa.h"
#include "common/lanes.h"
#include "common/pool.h"
#include "sample/args.h"
#include "sample/stream.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

using namespace wide;

constexpr float NOTHING = -__builtin_inff();
constexpr int64_t BLOCK = 1024;

struct Top {
    float largest = NOTHING, second = NOTHING;
    int64_t index = 0;

    void add(float value) {
        if (value > largest) {
            second = largest;
            largest = value;
        } else if (value > second) {
            second = value;
        }
    }
};

// Sixteen logits, -inf beyond `count` and for NaN.
Lanes sixteen(const float* from, int64_t count) {
    if (count >= LANES) return larger(load(from), all(NOTHING));
    float padded[LANES];
    for (int64_t i = 0; i < LANES; ++i) padded[i] = i < count ? from[i] : NOTHING;
    return larger(load(padded), all(NOTHING));
}

Top top_of(const float* logits, int64_t count) {
    Top top;
    int64_t block_of_largest = 0;
    for (int64_t first = 0; first < count; first += BLOCK) {
        const int64_t last = first + BLOCK < count ? first + BLOCK : count;
        Lanes largest = all(NOTHING), second = all(NOTHING);
        for (int64_t i = first; i < last; i += LANES) {
            const Lanes x = sixteen(logits + i, last - i);
            second = larger(second, smaller(x, largest));
            largest = larger(largest, x);
        }
        const float before = top.largest;
        float values[2 * LANES];
        store(values, largest);
        store(values + LANES, second);
        for (float value : values) top.add(value);
        // Only a larger one moves: the lowest index wins among equals.
        if (top.largest > before) block_of_largest = first;
    }
    if (top.largest == NOTHING) return top;
    for (top.index = block_of_largest; logits[top.index] != top.largest;) ++top.index;
    return top;
}

// An order of unsigned integers that is that of the logits; the zeros are equal, NaN is what -inf is.
uint32_t ordered(float logit) {
    const uint32_t bits = bits_from_float(logit == logit ? logit + 0.f : NOTHING);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// softmax(logits / temperature) up to a factor; returns the sum.
double weigh(const float* logits, int64_t count, float largest, float temperature, float* weights) {
    if (largest == __builtin_inff()) {
        for (int64_t i = 0; i < count; ++i) weights[i] = logits[i] == largest ? 1.f : 0.f;
    } else {
        // Bounded, since nothing times infinity is no number.
        const float hot = 1.44269504f / temperature, scale = hot < 1e30f ? hot : 1e30f;
        for (int64_t i = 0; i < count; i += LANES) {
            store(weights + i, exp2(mul(sub(sixteen(logits + i, count - i), all(largest)), all(scale))));
        }
    }
    double sums[4] = {};
    for (int64_t i = 0; i < count; ++i) sums[i % 4] += double(weights[i]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Tokens that may belong to the nucleus, in rising order: those lighter than an equal share of what may be left out weigh
// less than that together, so the rest reaches the target without them.
int64_t candidates_of(const float* weights, int64_t count, double left_out, int32_t* tokens) {
    const float least = float(left_out / double(count) * 0.5);
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
        tokens[found] = int32_t(i);
        found += weights[i] > 0 && weights[i] >= least;
    }
    return found;
}

// The logit at which the sum of masses from above reaches the target, as `ordered` gives it, and the mass above it; 0 where the
// sum falls short of the target by its rounding.
uint32_t least_logit(const float* logits, const float* weights, const int32_t* tokens, int64_t count, double target,
                     double* above) {
    constexpr int SHIFTS[] = {20, 10, 0}, BITS[] = {12, 10, 10};
    uint32_t prefix = 0, fixed = 0;
    double* const mass = static_cast<double*>(scratch(2, (int64_t(1) << BITS[0]) * int64_t(sizeof(double))));
    *above = 0;
    for (int level = 0; level < 3; ++level) {
        const int shift = SHIFTS[level];
        const uint32_t most = (1u << BITS[level]) - 1;
        for (uint32_t b = 0; b <= most; ++b) mass[b] = 0;
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t key = ordered(logits[tokens[i]]);
            if ((key & fixed) == prefix) mass[(key >> shift) & most] += double(weights[tokens[i]]);
        }
        int64_t b = most;
        while (b >= 0 && (mass[b] == 0 || *above + mass[b] < target)) *above += mass[b--];
        if (b < 0) return 0;
        prefix |= uint32_t(b) << shift;
        fixed |= most << shift;
    }
    return prefix;
}

// Keeps the nucleus of `tokens`: logits above the least one, and as many equal to it, by rising index, as the target needs.
int64_t nucleus_of(const float* logits, const float* weights, int32_t* tokens, int64_t count, double target) {
    double mass;
    const uint32_t least = least_logit(logits, weights, tokens, count, target, &mass);
    int64_t kept = 0;
    bool is_full = false;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t token = tokens[i];
        const uint32_t key = ordered(logits[token]);
        if (key < least || (key == least && is_full)) continue;
        tokens[kept++] = token;
        if (key != least) continue;
        mass += double(weights[token]);
        is_full = mass >= target;
    }
    return kept;
}

int32_t draw(const float* weights, const int32_t* tokens, int64_t count, double u) {
    double mass = 0, sum = 0;
    for (int64_t i = 0; i < count; ++i) mass += double(weights[tokens[i]]);
    for (int64_t i = 0; i < count; ++i) {
        sum += double(weights[tokens[i]]);
        if (sum > u * mass) return tokens[i];
    }
    return tokens[count - 1];
}

}  // namespace

void sample(const SampleArgs& a) {
    parallel_for(a.rows, a.rows * a.vocabulary < 1 << 16, [&](int64_t r) {
        const float* const logits = a.logits + r * a.logits_row;
        const Top top = top_of(logits, a.vocabulary);
        a.out_gap[r] = top.largest == top.second ? 0.f : top.largest - top.second;
        a.out_tokens[r] = int32_t(top.index);
        if (!(a.temperature[r] > 0) || top.largest == NOTHING) return;
        const int64_t padded = (a.vocabulary + LANES - 1) / LANES * LANES;
        float* const weights = static_cast<float*>(scratch(1, padded * int64_t(sizeof(float))));
        const double total = weigh(logits, a.vocabulary, top.largest, a.temperature[r], weights);
        const double u = uniform(a.seed[2 * r], a.seed[2 * r + 1], a.position[r], PURPOSE_TOKEN);
        const double top_p = double(a.top_p[r]);
        int32_t* const tokens = static_cast<int32_t*>(scratch(3, (a.vocabulary + 1) * int64_t(sizeof(int32_t))));
        const bool is_cut = top_p < 1;
        int64_t count = candidates_of(weights, a.vocabulary, is_cut ? (1 - top_p) * total : 0, tokens);
        if (is_cut) count = nucleus_of(logits, weights, tokens, count, top_p * total);
        a.out_tokens[r] = draw(weights, tokens, count, u);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
