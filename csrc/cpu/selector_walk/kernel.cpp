// The likeliest tokens of each row, then one walk along each block that takes what best follows its predecessor.
//
// Sums over the rank run in sixteen lanes and a fixed tree, so that a walk depends on its own block alone.
#include "common/isa.h"
#include "common/lanes.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "selector_walk/args.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

using namespace wide;

constexpr float NOTHING = -__builtin_inff();

struct Candidate {
    float logit;
    int32_t token;
};

// Sixteen logits, -inf beyond `count` and for NaN.
Lanes sixteen(const float* from, int64_t count) {
    if (count >= LANES) return larger(load(from), all(NOTHING));
    float padded[LANES];
    for (int64_t i = 0; i < LANES; ++i) padded[i] = i < count ? from[i] : NOTHING;
    return larger(load(padded), all(NOTHING));
}

// By falling logit, equals by rising index; NaN counts as -inf.
void top_of(const float* logits, int64_t count, int64_t top_k, Candidate* found) {
    int64_t held = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        const Lanes x = sixteen(logits + first, count - first);
        // Only a larger one moves anybody, so most of a large vocabulary ends here.
        if (held == top_k && !(largest(x) > found[held - 1].logit)) continue;
        float values[LANES];
        store(values, x);
        for (int64_t i = 0; i < LANES && first + i < count; ++i) {
            if (held == top_k && !(values[i] > found[held - 1].logit)) continue;
            int64_t at = held < top_k ? held++ : held - 1;
            for (; at > 0 && values[i] > found[at - 1].logit; --at) found[at] = found[at - 1];
            found[at] = {values[i], int32_t(first + i)};
        }
    }
}

// sum over the rank of before * successor, `before` padded with zeros to whole lanes.
float dot(const float* before, const uint16_t* successor, int64_t rank) {
    float lanes[LANES] = {};
    int64_t i = 0;
    for (; i + LANES <= rank; i += LANES) {
        for (int64_t j = 0; j < LANES; ++j) lanes[j] += before[i + j] * from_bf16(successor[i + j]);
    }
    for (int64_t j = 0; i + j < rank; ++j) lanes[j] += before[i + j] * from_bf16(successor[i + j]);
    return sum(load(lanes));
}

void walk(const SelectorWalkArgs& a, int64_t first, const Candidate* candidates, float* before) {
    int32_t previous = a.tokens[first];
    a.out_tokens[first] = a.out_alone[first] = previous;
    for (int64_t r = first + 1; r < first + a.block; ++r) {
        const Candidate* const own = candidates + r * a.top_k;
        const uint16_t *const book = a.predecessor + previous * a.rank, *const gate = a.gate + r * a.gate_row;
        for (int64_t i = 0; i < a.rank; ++i) before[i] = from_bf16(book[i]) * from_bf16(gate[i]);
        int64_t best = 0;
        float highest = NOTHING;
        for (int64_t c = 0; c < a.top_k; ++c) {
            const float score = own[c].logit + dot(before, a.successor + own[c].token * a.rank, a.rank);
            if (score > highest) highest = score, best = c;
        }
        a.out_tokens[r] = previous = own[best].token;
        a.out_alone[r] = own[0].token;
    }
}

}  // namespace

void selector_walk(const SelectorWalkArgs& a) {
    auto* const candidates = static_cast<Candidate*>(scratch(0, a.rows * a.top_k * int64_t(sizeof(Candidate))));
    parallel_for(a.rows, a.rows * a.vocabulary < 1 << 16, [&](int64_t r) {
        if (r % a.block != 0) top_of(a.logits + r * a.vocabulary, a.vocabulary, a.top_k, candidates + r * a.top_k);
    });
    parallel_for(a.rows / a.block, a.rows * a.top_k * a.rank < 1 << 16, [&](int64_t b) {
        walk(a, b * a.block, candidates, static_cast<float*>(scratch(1, a.rank * int64_t(sizeof(float)))));
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
