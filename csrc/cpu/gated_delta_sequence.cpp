// The gated delta rule over whole sequences, forward and backward, as the plain recurrence in fp32.
//
//   S_t = a_t S_{t-1} + k_t (x) d_t      d_t = beta_t (v_t - a_t S_{t-1}^T k_t)      o_t = S_t^T q_t      a_t = exp(g_t)
//
// Layouts, all contiguous fp32: q, k [B, T, G, K]; v, out [B, T, H, V]; g, beta [B, T, H]; value head h reads key head
// h / (H / G). A state of 64 x 64 fp32 is 16 KiB and stays in the first-level cache, which is why the recurrence beats
// the chunked form on a CPU for sequences of a few hundred tokens. The backward pass keeps the states of one sequence
// and head (T x K x V floats for each thread) and walks back over them.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Shape {
    int64_t batch, length, key_heads, value_heads;
};

template <int K, int V>
void step(const float* k, const float* v, float decay, float beta, const float* before, float* after, float* delta) {
    alignas(64) float read[V] = {};
    for (int i = 0; i < K; ++i) {
        const float* row = before + i * V;
        for (int j = 0; j < V; ++j) read[j] += k[i] * row[j];
    }
    for (int j = 0; j < V; ++j) delta[j] = beta * (v[j] - decay * read[j]);
    for (int i = 0; i < K; ++i) {
        for (int j = 0; j < V; ++j) after[i * V + j] = decay * before[i * V + j] + k[i] * delta[j];
    }
}

template <int K, int V>
void forward_head(const Shape& s, int64_t b, int64_t h, const float* q, const float* k, const float* v, const float* g,
                  const float* beta, float* out) {
    alignas(64) float state[K * V] = {};
    alignas(64) float delta[V];
    const int64_t kh = h / (s.value_heads / s.key_heads);
    for (int64_t t = 0; t < s.length; ++t) {
        const int64_t token = b * s.length + t, head = token * s.value_heads + h, key = token * s.key_heads + kh;
        step<K, V>(k + key * K, v + head * V, std::exp(g[head]), beta[head], state, state, delta);
        alignas(64) float sum[V] = {};
        for (int i = 0; i < K; ++i) {
            const float w = q[key * K + i];
            for (int j = 0; j < V; ++j) sum[j] += w * state[i * V + j];
        }
        std::memcpy(out + head * V, sum, sizeof(sum));
    }
}

// Gradients of q and k are added for the value heads that share a key head, so heads of one sequence run in one thread.
template <int K, int V>
void backward_head(const Shape& s, int64_t b, int64_t h, const float* q, const float* k, const float* v, const float* g,
                   const float* beta, const float* dout, float* dq, float* dk, float* dv, float* dg, float* dbeta,
                   std::vector<float>& states, std::vector<float>& deltas) {
    const int64_t kh = h / (s.value_heads / s.key_heads);
    std::memset(states.data(), 0, sizeof(float) * K * V);
    for (int64_t t = 0; t < s.length; ++t) {
        const int64_t token = b * s.length + t, head = token * s.value_heads + h, key = token * s.key_heads + kh;
        step<K, V>(k + key * K, v + head * V, std::exp(g[head]), beta[head], states.data() + t * K * V,
                   states.data() + (t + 1) * K * V, deltas.data() + t * V);
    }
    alignas(64) float ds[K * V] = {};
    for (int64_t t = s.length - 1; t >= 0; --t) {
        const int64_t token = b * s.length + t, head = token * s.value_heads + h, key = token * s.key_heads + kh;
        const float* before = states.data() + t * K * V;
        const float* after = before + K * V;
        const float *qt = q + key * K, *kt = k + key * K, *delta = deltas.data() + t * V, *go = dout + head * V;
        const float decay = std::exp(g[head]);
        alignas(64) float ddelta[V] = {}, read[V] = {}, dread[V], along[V] = {};
        for (int i = 0; i < K; ++i) {
            float dot = 0.f;
            for (int j = 0; j < V; ++j) {
                dot += after[i * V + j] * go[j];
                ds[i * V + j] += qt[i] * go[j];
                ddelta[j] += kt[i] * ds[i * V + j];
                read[j] += kt[i] * before[i * V + j];
            }
            dq[key * K + i] += dot;
        }
        float db = 0.f, from_read = 0.f;
        for (int j = 0; j < V; ++j) {
            db += ddelta[j] * (v[head * V + j] - decay * read[j]);
            dv[head * V + j] = beta[head] * ddelta[j];
            dread[j] = -beta[head] * ddelta[j];
            from_read += dread[j] * read[j];
        }
        for (int i = 0; i < K; ++i) {
            float dot = 0.f;
            for (int j = 0; j < V; ++j) {
                const float d = ds[i * V + j], p = before[i * V + j];
                dot += d * delta[j] + decay * p * dread[j];
                along[j] += d * p;
                ds[i * V + j] = decay * (d + kt[i] * dread[j]);
            }
            dk[key * K + i] += dot;
        }
        float da = from_read;
        for (int j = 0; j < V; ++j) da += along[j];
        dg[head] = da * decay;
        dbeta[head] = db;
    }
}

template <int K, int V>
void forward_all(const Shape& s, const float* q, const float* k, const float* v, const float* g, const float* beta,
                 float* out, int threads) {
#pragma omp parallel for collapse(2) num_threads(threads) schedule(dynamic)
    for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t h = 0; h < s.value_heads; ++h) forward_head<K, V>(s, b, h, q, k, v, g, beta, out);
}

template <int K, int V>
void backward_all(const Shape& s, const float* q, const float* k, const float* v, const float* g, const float* beta,
                  const float* dout, float* dq, float* dk, float* dv, float* dg, float* dbeta, int threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> states((s.length + 1) * K * V), deltas(s.length * V);
#pragma omp for schedule(dynamic)
        for (int64_t b = 0; b < s.batch; ++b)
            for (int64_t h = 0; h < s.value_heads; ++h)
                backward_head<K, V>(s, b, h, q, k, v, g, beta, dout, dq, dk, dv, dg, dbeta, states, deltas);
    }
}

}  // namespace

// Both return 0, or 1 when the head size is not compiled. dq and dk must be zeroed by the caller.
extern "C" int gated_delta_sequence_forward(int64_t batch, int64_t length, int64_t key_heads, int64_t value_heads,
                                            int64_t head_dim, const float* q, const float* k, const float* v,
                                            const float* g, const float* beta, float* out, int threads) {
    const Shape s{batch, length, key_heads, value_heads};
    switch (head_dim) {
        case 32: forward_all<32, 32>(s, q, k, v, g, beta, out, threads); return 0;
        case 64: forward_all<64, 64>(s, q, k, v, g, beta, out, threads); return 0;
        case 128: forward_all<128, 128>(s, q, k, v, g, beta, out, threads); return 0;
        default: return 1;
    }
}

extern "C" int gated_delta_sequence_backward(int64_t batch, int64_t length, int64_t key_heads, int64_t value_heads,
                                             int64_t head_dim, const float* q, const float* k, const float* v,
                                             const float* g, const float* beta, const float* dout, float* dq, float* dk,
                                             float* dv, float* dg, float* dbeta, int threads) {
    const Shape s{batch, length, key_heads, value_heads};
    switch (head_dim) {
        case 32: backward_all<32, 32>(s, q, k, v, g, beta, dout, dq, dk, dv, dg, dbeta, threads); return 0;
        case 64: backward_all<64, 64>(s, q, k, v, g, beta, dout, dq, dk, dv, dg, dbeta, threads); return 0;
        case 128: backward_all<128, 128>(s, q, k, v, g, beta, dout, dq, dk, dv, dg, dbeta, threads); return 0;
        default: return 1;
    }
}
