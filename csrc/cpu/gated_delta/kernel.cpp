// The gated delta rule over whole sequences from a zero state, forward and backward, as the plain recurrence of delta/step.h.
//
// A state of 64 x 64 fp32 is 16 KiB and stays in the first-level cache, which is why the recurrence beats the chunked form on
// a processor for sequences of a few hundred tokens. The backward pass keeps the states of one sequence and head, T x K x V
// floats for each thread, and walks back over them. With d_x for the gradient of x, S' the state behind a token and S the
// one before it, r = S^T k and a = e^g:
//
//   d_q = S' d_o       d_S' += q d_o^T       d_u = d_S'^T k       d_v = beta d_u       d_r = -a beta d_u
//   d_k = d_S' u + S d_r       d_S = a d_S' + k d_r^T       d_a = sum d_S' S - beta d_u . r
#include "common/isa.h"
#include "common/pool.h"
#include "delta/step.h"
#include "gated_delta/args.h"

namespace ocrquant::OCRQUANT_ISA {

using namespace delta;

namespace {

// Where head `h` of token `t` lies.
struct Place {
    int64_t gate, value, key;
};

Place place_of(const GatedDeltaSequences& in, int64_t b, int64_t t, int64_t h) {
    const int64_t token = b * in.length + t, gate = token * in.heads + h;
    const int64_t key = token * in.key_heads + h / (in.heads / in.key_heads);
    return {gate, gate * in.value_dim, key * in.key_dim};
}

float* floats(int slot, int64_t count) { return static_cast<float*>(scratch(slot, count * int64_t(sizeof(float)))); }

void clear(float* to, int64_t count) { memset(to, 0, size_t(count) * sizeof(float)); }

void forward_head(const GatedDeltaArgs& args, int64_t b, int64_t h) {
    const GatedDeltaSequences& in = args.in;
    const int64_t size = in.key_dim * in.value_dim;
    float *state = floats(0, size + 2 * in.value_dim), *hk = state + size, *u = hk + in.value_dim;
    clear(state, size);
    for (int64_t t = 0; t < in.length; ++t) {
        const Place at = place_of(in, b, t, h);
        advance(state, state, in.key_dim, in.value_dim, expf(in.log_gate[at.gate]), in.beta[at.gate], in.k + at.key,
                in.q + at.key, in.v + at.value, hk, args.out + at.value, u);
    }
}

// The forward pass of one head once more: states [T + 1, K, V], and r and u of every token, [T, V] each.
struct Trace {
    float *states, *r, *u;
};

void trace_head(const GatedDeltaSequences& in, int64_t b, int64_t h, const Trace& trace) {
    const int64_t size = in.key_dim * in.value_dim;
    clear(trace.states, size);
    for (int64_t t = 0; t < in.length; ++t) {
        const Place at = place_of(in, b, t, h);
        const float *from = trace.states + t * size, *v = in.v + at.value;
        const float decay = expf(in.log_gate[at.gate]), beta = in.beta[at.gate];
        float *r = trace.r + t * in.value_dim, *u = trace.u + t * in.value_dim;
        read_state<1>(from, in.key_dim, in.value_dim, {in.k + at.key}, {r});
        for (int64_t j = 0; j < in.value_dim; ++j) u[j] = beta * (v[j] - decay * r[j]);
        update_state(from, trace.states + (t + 1) * size, in.key_dim, in.value_dim, decay, in.k + at.key, u);
    }
}

// d_q += after d_o, d_state += q d_o^T, d_u = d_state^T k
void through_output(const GatedDeltaSequences& in, const float* after, const float* q, const float* k, const float* d_o,
                    float* d_state, float* d_q, float* d_u) {
    clear(d_u, in.value_dim);
    for (int64_t i = 0; i < in.key_dim; i += 4) {
        const Lanes queries[4] = {all(q[i]), all(q[i + 1]), all(q[i + 2]), all(q[i + 3])};
        const Lanes keys[4] = {all(k[i]), all(k[i + 1]), all(k[i + 2]), all(k[i + 3])};
        Lanes dots[4] = {all(0.f), all(0.f), all(0.f), all(0.f)};
        for (int64_t v = 0; v < in.value_dim; v += LANES) {
            const Lanes go = load(d_o + v);
            Lanes sum = load(d_u + v);
            for (int j = 0; j < 4; ++j) {
                const int64_t at = (i + j) * in.value_dim + v;
                const Lanes d = fma(queries[j], go, load(d_state + at));
                dots[j] = fma(load(after + at), go, dots[j]);
                sum = fma(keys[j], d, sum);
                store(d_state + at, d);
            }
            store(d_u + v, sum);
        }
        add_totals(dots, d_q + i);
    }
}

// d_k += d_state u + before d_r, d_state = decay d_state + k d_r^T; returns the sum of d_state before, as it was.
float through_update(const GatedDeltaSequences& in, const float* before, const float* k, const float* u, const float* d_r,
                     float decay, float* d_state, float* d_k) {
    Lanes along = all(0.f);
    for (int64_t i = 0; i < in.key_dim; i += 4) {
        const Lanes keys[4] = {all(k[i]), all(k[i + 1]), all(k[i + 2]), all(k[i + 3])}, factor = all(decay);
        Lanes dots[4] = {all(0.f), all(0.f), all(0.f), all(0.f)}, products[2] = {all(0.f), all(0.f)};
        for (int64_t v = 0; v < in.value_dim; v += LANES) {
            const Lanes written = load(u + v), back = load(d_r + v);
            for (int j = 0; j < 4; ++j) {
                const int64_t at = (i + j) * in.value_dim + v;
                const Lanes d = load(d_state + at), s = load(before + at);
                dots[j] = fma(s, back, fma(d, written, dots[j]));
                products[j % 2] = fma(d, s, products[j % 2]);
                store(d_state + at, fma(keys[j], back, factor * d));
            }
        }
        along += products[0] + products[1];
        add_totals(dots, d_k + i);
    }
    return total(along);
}

void backward_head(const GatedDeltaBackwardArgs& args, int64_t b, int64_t h, const Trace& trace, float* space) {
    const GatedDeltaSequences& in = args.in;
    const int64_t size = in.key_dim * in.value_dim, width = in.value_dim;
    float *d_state = space, *d_u = d_state + size, *d_r = d_u + width;
    trace_head(in, b, h, trace);
    clear(d_state, size);
    for (int64_t t = in.length - 1; t >= 0; --t) {
        const Place at = place_of(in, b, t, h);
        const float *before = trace.states + t * size, *r = trace.r + t * width, *u = trace.u + t * width;
        const float decay = expf(in.log_gate[at.gate]), beta = in.beta[at.gate];
        through_output(in, before + size, in.q + at.key, in.k + at.key, args.d_out + at.value, d_state, args.d_q + at.key,
                       d_u);
        Lanes of_beta = all(0.f), of_read = all(0.f);
        for (int64_t j = 0; j < width; j += LANES) {
            const Lanes d = load(d_u + j), read = load(r + j);
            of_beta = fma(d, load(in.v + at.value + j) - all(decay) * read, of_beta);
            of_read = fma(d, read, of_read);
            store(args.d_v + at.value + j, all(beta) * d);
            store(d_r + j, all(-decay * beta) * d);
        }
        const float along = through_update(in, before, in.k + at.key, u, d_r, decay, d_state, args.d_k + at.key);
        args.d_beta[at.gate] = total(of_beta);
        args.d_log_gate[at.gate] = decay * (along - beta * total(of_read));
    }
}

bool is_small(const GatedDeltaSequences& in) {
    return in.batch * in.length * in.heads * in.key_dim * in.value_dim < SERIAL_STATE_ELEMENTS;
}

}  // namespace

void gated_delta(const GatedDeltaArgs& args) {
    parallel_for(args.in.batch * args.in.heads, is_small(args.in),
                 [&](int64_t task) { forward_head(args, task / args.in.heads, task % args.in.heads); });
}

// The value heads of one key head add to the same gradients of q and k: they are one task.
void gated_delta_backward(const GatedDeltaBackwardArgs& args) {
    const GatedDeltaSequences& in = args.in;
    const int64_t size = in.key_dim * in.value_dim, width = in.value_dim, group = in.heads / in.key_heads;
    parallel_for(in.batch * in.key_heads, is_small(in), [&](int64_t task) {
        const int64_t b = task / in.key_heads, first = task % in.key_heads * group;
        float* states = floats(0, (in.length + 1) * size + 2 * in.length * width);
        const Trace trace{states, states + (in.length + 1) * size, states + (in.length + 1) * size + in.length * width};
        for (int64_t t = 0; t < in.length; ++t) {
            const Place at = place_of(in, b, t, first);
            clear(args.d_q + at.key, in.key_dim);
            clear(args.d_k + at.key, in.key_dim);
        }
        for (int64_t h = first; h < first + group; ++h) backward_head(args, b, h, trace, floats(1, size + 2 * width));
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
