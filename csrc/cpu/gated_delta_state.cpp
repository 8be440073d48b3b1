// The gated delta rule carried on from a state, for inference: normalisation of q and k, recurrence and output in one pass.
//
//   q^ = q / sqrt(q.q + eps) / sqrt(D)    k^ = k / sqrt(k.k + eps)
//   S_t = a_t S_{t-1} + k^_t (x) d_t      d_t = beta_t (v_t - a_t S_{t-1}^T k^_t)      o_t = S_t^T q^_t      a_t = exp(g_t)
//
// Layouts, all contiguous: mixed [B, T, 2 G D + H D] holds q | k | v of each token in fp32 or bf16 (raw bits); g [B, T, H]
// fp32; beta [B, T, H] fp32; state [B, H, D, D] fp32, updated in place; out [B, T, H, D] in the type of mixed. Value head h
// reads key head h / (H / G). All arithmetic is fp32. A decode step (T = 1) reads and writes each state once, where a chain
// of tensor operations passes over it seven times.
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

inline float widen(float x) { return x; }
inline float widen(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof(x));
    return x;
}

inline void narrow(float x, float* to) { *to = x; }
// Round to nearest, ties to even; a NaN keeps its sign and stays a NaN.
inline void narrow(float x, uint16_t* to) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    *to = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <int D, typename T>
void normalise(const T* from, float scale, float eps, float* to) {
    float sum = 0.f;
    for (int i = 0; i < D; ++i) {
        to[i] = widen(from[i]);
        sum += to[i] * to[i];
    }
    const float factor = scale / std::sqrt(sum + eps);
    for (int i = 0; i < D; ++i) to[i] *= factor;
}

template <int D, typename T>
void head(int64_t b, int64_t h, int64_t length, int64_t key_heads, int64_t value_heads, float eps, const T* mixed,
          const float* g, const float* beta, float* state, T* out) {
    const int64_t kh = h / (value_heads / key_heads), channels = (2 * key_heads + value_heads) * D;
    float* s = state + (b * value_heads + h) * D * D;
    alignas(64) float q[D], k[D], delta[D];
    for (int64_t t = 0; t < length; ++t) {
        const int64_t token = b * length + t, at = token * value_heads + h;
        const T* row = mixed + token * channels;
        normalise<D>(row + kh * D, 1.f / std::sqrt(static_cast<float>(D)), eps, q);
        normalise<D>(row + (key_heads + kh) * D, 1.f, eps, k);
        const T* v = row + (2 * key_heads + h) * D;
        const float decay = std::exp(g[at]);
        alignas(64) float read[D] = {}, sum[D] = {};
        for (int i = 0; i < D; ++i) {
            for (int j = 0; j < D; ++j) read[j] += k[i] * s[i * D + j];
        }
        for (int j = 0; j < D; ++j) delta[j] = beta[at] * (widen(v[j]) - decay * read[j]);
        for (int i = 0; i < D; ++i) {
            for (int j = 0; j < D; ++j) {
                s[i * D + j] = decay * s[i * D + j] + k[i] * delta[j];
                sum[j] += q[i] * s[i * D + j];
            }
        }
        for (int j = 0; j < D; ++j) narrow(sum[j], out + at * D + j);
    }
}

template <typename T>
int run(int64_t batch, int64_t length, int64_t key_heads, int64_t value_heads, int64_t dim, float eps, const T* mixed,
        const float* g, const float* beta, float* state, T* out, int threads) {
    if (dim != 32 && dim != 64 && dim != 128) return 1;
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static)
    for (int64_t b = 0; b < batch; ++b) {
        for (int64_t h = 0; h < value_heads; ++h) {
            if (dim == 32) head<32>(b, h, length, key_heads, value_heads, eps, mixed, g, beta, state, out);
            if (dim == 64) head<64>(b, h, length, key_heads, value_heads, eps, mixed, g, beta, state, out);
            if (dim == 128) head<128>(b, h, length, key_heads, value_heads, eps, mixed, g, beta, state, out);
        }
    }
    return 0;
}

}  // namespace

extern "C" int gated_delta_state_fp32(int64_t batch, int64_t length, int64_t key_heads, int64_t value_heads, int64_t dim,
                                      float eps, const float* mixed, const float* g, const float* beta, float* state,
                                      float* out, int threads) {
    return run(batch, length, key_heads, value_heads, dim, eps, mixed, g, beta, state, out, threads);
}

extern "C" int gated_delta_state_bf16(int64_t batch, int64_t length, int64_t key_heads, int64_t value_heads, int64_t dim,
                                      float eps, const uint16_t* mixed, const float* g, const float* beta, float* state,
                                      uint16_t* out, int threads) {
    return run(batch, length, key_heads, value_heads, dim, eps, mixed, g, beta, state, out, threads);
}
