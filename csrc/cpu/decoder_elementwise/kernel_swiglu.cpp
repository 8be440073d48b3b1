// The middle of a gated MLP for training: gate and up are tensors of their own, and one rounding at the end.
#include "decoder_elementwise/args.h"
#include "decoder_elementwise/shares.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

// f(first, count) for pieces of all elements.
template <class Function>
void for_pieces(int64_t count, Function f) {
    for_rows((count + PART_ELEMENTS - 1) / PART_ELEMENTS, PART_ELEMENTS, [&](int64_t i) {
        const int64_t first = i * PART_ELEMENTS;
        f(first, first + PART_ELEMENTS < count ? PART_ELEMENTS : count - first);
    });
}

}  // namespace

void swiglu(const SwigluArgs& a) {
    for_pieces(a.count, [&](int64_t i, int64_t count) {
        map(a.y + i, count, [](Turn g, Turn up) { return silu(g) * up; }, a.gate + i, a.up + i);
    });
}

void swiglu_backward(const SwigluBackwardArgs& a) {
    for_pieces(a.count, [&](int64_t i, int64_t count) {
        float gates[PART_ELEMENTS];
        map(gates, count, [](Turn g) { return sigmoid(g); }, a.gate + i);
        map(a.d_up + i, count, [](Turn d, Turn g, Turn s) { return d * (g * s); }, a.d_y + i, a.gate + i, gates);
        map(
            a.d_gate + i, count, [](Turn d, Turn up, Turn g, Turn s) { return d * up * silu_slope(g, s); }, a.d_y + i, a.up + i,
            a.gate + i, gates);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
