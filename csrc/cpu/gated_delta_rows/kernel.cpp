// The gated delta rule over rows of many requests, token by token, states in place. One task is one head of one request.
#include "common/isa.h"
#include "common/pool.h"
#include "delta/run.h"
#include "gated_delta_rows/args.h"

namespace ocrquant::OCRQUANT_ISA {

using namespace delta;

namespace {

// Rows whose terms are computed before the state is read; what they take stays in the first-level cache with the state.
constexpr int64_t ROWS = 16;

}  // namespace

void gated_delta_rows(const GatedDeltaRowsArgs& args) {
    const DeltaRows& rows = args.rows;
    const int64_t key_dim = rows.key_dim, value_dim = rows.value_dim, size = key_dim * value_dim;
    for_heads(rows, [&](int64_t request, int64_t head, int64_t first, int64_t count) {
        float* const state = args.state + (rows.slots[request] * rows.heads + head) * size;
        if (args.fresh[request] != 0) memset(state, 0, size_t(size) * sizeof(float));
        const int64_t floats = ROWS * (2 * key_dim + 2 * value_dim + 3);
        float* const k = static_cast<float*>(scratch(0, floats * int64_t(sizeof(float))));
        float *const q = k + ROWS * key_dim, *const u = q + ROWS * key_dim, *const out = u + ROWS * value_dim;
        float *const decay = out + ROWS * value_dim, *const beta = decay + ROWS, *const kq = beta + ROWS;
        for (int64_t begin = 0; begin < count; begin += ROWS) {
            const int64_t some = count - begin < ROWS ? count - begin : ROWS, row = first + begin;
            for (int64_t i = 0; i < some; ++i)
                terms_of(rows, row + i, head, k + i * key_dim, q + i * key_dim, decay + i, beta + i, kq + i);
            run_rows({state, state, true, key_dim, value_dim, some, k, key_dim, q, decay, 1, beta, kq, value_of(rows, row, head),
                      rows.mixed_stride, u, value_dim, out});
            for (int64_t i = 0; i < some; ++i) write_bf16(out + i * value_dim, value_dim, out_of(rows, row + i, head));
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
