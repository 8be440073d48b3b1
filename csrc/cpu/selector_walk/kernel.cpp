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

Lanes widened(const uint16_t* from) {
#if defined(OCRQUANT_WITH_AVX512)
    return {widen16(from)};
#else
    float wide[LANES];
    for (int64_t j = 0; j < LANES; ++j) wide[j] = from_bf16(from[j]);
    return load(wide);
#endif
}

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

#if defined(OCRQUANT_WITH_AVX512)

constexpr int64_t FEW = 128, EIGHT = 8;

// The same where there are few candidates: nothing below the least of sixteen lanes' largest logits is among the first sixteen, which
// leaves some 54 of any number of logits in no order. Each one's place is how many come before it: no step waits for another. False,
// with nothing found, where equals or a short row leave too many.
bool few_of(const float* logits, int64_t count, int64_t top_k, Candidate* found) {
    Lanes top = all(NOTHING);
    for (int64_t first = 0; first < count; first += LANES) top = larger(sixteen(logits + first, count - first), top);
    const float lowest = _mm512_reduce_min_ps(top.v);
    if (lowest == NOTHING) return false;
    const __m512 least = _mm512_set1_ps(lowest);
    alignas(64) int32_t tokens[FEW + LANES];
    int64_t held = 0;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int64_t first = 0; first < count; first += LANES) {
        const __mmask16 kept = _mm512_cmp_ps_mask(sixteen(logits + first, count - first).v, least, _CMP_GE_OQ);
        _mm512_storeu_si512(tokens + held, _mm512_maskz_compress_epi32(kept, _mm512_add_epi32(lanes, _mm512_set1_epi32(int32_t(first)))));
        held += __builtin_popcount(kept);
        if (held > FEW) return false;
    }
    // A key of 64 bits: the logit so that it orders as an integer, and the earlier token as the larger one.
    alignas(64) int64_t keys[FEW + EIGHT];
    for (int64_t i = 0; i < held; ++i) {
        const int32_t bits = int32_t(bits_from_float(logits[tokens[i]] + 0.f));  // zeros are equal
        keys[i] = int64_t(bits < 0 ? bits ^ 0x7fffffff : bits) * (int64_t(1) << 32) + (FEW - i);
    }
    _mm512_storeu_si512(keys + held, _mm512_setzero_si512());
    for (int64_t first = 0; first < held; first += EIGHT) {
        const __m512i key = _mm512_load_si512(keys + first);
        __m512i before = _mm512_setzero_si512();
        for (int64_t i = 0; i < held; ++i)
            before = _mm512_mask_add_epi64(before, _mm512_cmpgt_epi64_mask(_mm512_set1_epi64(keys[i]), key), before, _mm512_set1_epi64(1));
        alignas(64) int64_t place[EIGHT];
        _mm512_store_si512(place, before);
        for (int64_t e = 0; e < EIGHT && first + e < held; ++e) {
            const int32_t token = tokens[first + e];
            if (place[e] < top_k) found[place[e]] = {logits[token], token};
        }
    }
    return true;
}

#else

bool few_of(const float*, int64_t, int64_t, Candidate*) { return false; }

#endif

// sum over the rank of before * successor, `before` padded with zeros to whole lanes.
float dot(const float* before, const uint16_t* successor, int64_t rank) {
    Lanes sums = all(0.f);
    int64_t i = 0;
    for (; i + LANES <= rank; i += LANES) sums = add(sums, mul(load(before + i), widened(successor + i)));
    if (i == rank) return sum(sums);
    float lanes[LANES];
    store(lanes, sums);
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
        if (r % a.block == 0) return;
        const float* const logits = a.logits + r * a.vocabulary;
        Candidate* const found = candidates + r * a.top_k;
        if (a.top_k > LANES || !few_of(logits, a.vocabulary, a.top_k, found)) top_of(logits, a.vocabulary, a.top_k, found);
    });
    parallel_for(a.rows / a.block, a.rows * a.top_k * a.rank < 1 << 16, [&](int64_t b) {
        walk(a, b * a.block, candidates, static_cast<float*>(scratch(1, a.rank * int64_t(sizeof(float)))));
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
