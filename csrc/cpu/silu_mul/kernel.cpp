// y = round(round(silu(gate)) * up), gate and up the halves of a row; then the operand's forms.
#include "common/produce.h"
#include "common/silu_table.h"
#include "silu_mul/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

#if defined(OCRQUANT_WITH_AVX512)

// The entries of the table for bf16 numbers that were widened, widened.
__m512 entries(const uint16_t* table, __m512 x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(looked_up(table, _mm512_srli_epi32(_mm512_castps_si512(x), 16)), 16));
}

void part(const uint16_t* gate, const uint16_t* up, int64_t count, uint16_t* y) {
    const uint16_t* const table = silu_table();
    for_lines(count, [&](int64_t i, int64_t n) {
        const Wide32 g = columns(gate + i, n);
        store_columns(y + i, Wide32{entries(table, g.a), entries(table, g.b)} * columns(up + i, n), n);
    });
}

#else

void part(const uint16_t* gate, const uint16_t* up, int64_t count, uint16_t* y) {
    silu_row(gate, count, y);
    map(y, count, [](Turn g, Turn x) { return g * x; }, y, up);
}

#endif

}  // namespace

void silu_mul(const SiluMulArgs& a) {
    produce_parts(a.rows, a.width, BLOCK, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
        const uint16_t* const gate = a.gate_up + r * a.stride + first;
        part(gate, gate + a.width, last - first, y + first);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
