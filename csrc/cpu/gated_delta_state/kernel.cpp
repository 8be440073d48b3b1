// The gated delta rule carried on from a state, with gates as the caller has computed them. One task is one head of one
// sequence. A decode step reads and writes each state once, where a chain of tensor operations passes over it seven times.
#include "common/isa.h"
#include "common/pool.h"
#include "delta/step.h"
#include "gated_delta_state/args.h"

namespace ocrquant::OCRQUANT_ISA {

using namespace delta;

namespace {

inline void write(const float* from, int64_t count, uint16_t* to) { write_bf16(from, count, to); }
inline void write(const float* from, int64_t count, float* to) { memcpy(to, from, size_t(count) * sizeof(float)); }

template <class Element>
void run_head(const GatedDeltaStateArgs& a, int64_t b, int64_t head) {
    const int64_t key_dim = a.key_dim, value_dim = a.value_dim, width = a.key_heads * key_dim;
    const int64_t channels = 2 * width + a.heads * value_dim, key = head / (a.heads / a.key_heads) * key_dim;
    const float scale = 1.f / sqrtf(float(key_dim));
    float* const state = a.state + (b * a.heads + head) * key_dim * value_dim;
    float* const k = static_cast<float*>(scratch(0, step_floats(key_dim, value_dim) * int64_t(sizeof(float))));
    float *q = k + key_dim, *hk = q + key_dim, *out = hk + value_dim, *u = out + value_dim;
    for (int64_t token = b * a.length; token < (b + 1) * a.length; ++token) {
        const int64_t at = token * a.heads + head;
        const Element* const row = static_cast<const Element*>(a.mixed) + token * channels;
        normalise(row + key, key_dim, scale, q);
        normalise(row + width + key, key_dim, 1.f, k);
        advance(state, state, key_dim, value_dim, expf(a.log_gate[at]), a.beta[at], k, q, row + 2 * width + head * value_dim,
                hk, out, u);
        write(out, value_dim, static_cast<Element*>(a.out) + at * value_dim);
    }
}

}  // namespace

void gated_delta_state(const GatedDeltaStateArgs& a) {
    const bool is_small = a.batch * a.length * a.heads * a.key_dim * a.value_dim < SERIAL_STATE_ELEMENTS;
    parallel_for(a.batch * a.heads, is_small, [&](int64_t task) {
        if (a.is_bf16)
            run_head<uint16_t>(a, task / a.heads, task % a.heads);
        else
            run_head<float>(a, task / a.heads, task % a.heads);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
