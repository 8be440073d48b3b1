// What lies between the matrix products of a Gated DeltaNet decoder, forward and backward, one pass over memory each:
//
//   unit_norm    y = x rsqrt(mean x^2 + eps) (1 + w)                                 (zero-centred RMSNorm)
//   swiglu       y = silu(gate) up
//   short_conv   causal depthwise convolution of four taps, SiLU, split into q | k | v, l2 norm of q and k heads
//   gated_norm   y = o rsqrt(mean o^2 + eps) w silu(z), the mean over each head
//
// Tensors that models keep in bf16 are bf16 here (raw bits in uint16_t); all arithmetic is fp32; gradients of weights are
// fp32 and are added to what the caller zeroed. Rounding differs from the unfused bf16 operations only in that nothing is
// rounded between the steps of one function.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

inline float wide(uint16_t bits) {
    uint32_t u = uint32_t(bits) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

// Round to nearest, ties to even; NaN does not occur in these tensors unless training has already failed.
inline uint16_t narrow(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// exp by a polynomial on [-ln2/2, ln2/2] and an exponent shift: relative error under 2e-7. Written with comparisons and
// a truncating conversion, which compilers turn into vector instructions; fmin and nearbyint stayed scalar calls.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 87.0f ? 87.0f : x;
    const float y = x * 1.44269504f;
    const int32_t n = int32_t(y + (y < 0.0f ? -0.5f : 0.5f));
    const float f = float(n);
    const float r = (x - f * 0.693359375f) - f * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t e = (n + 127) << 23;
    float scale;
    std::memcpy(&scale, &e, 4);
    return p * scale;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

constexpr int TAPS = 4;

}  // namespace

extern "C" void unit_norm_forward(int64_t rows, int64_t width, float eps, const uint16_t* x, const float* w, uint16_t* y,
                                  float* rstd, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* xr = x + r * width;
        float sum = 0.f;
        for (int64_t i = 0; i < width; ++i) sum += wide(xr[i]) * wide(xr[i]);
        const float s = rstd[r] = 1.0f / std::sqrt(sum / width + eps);
        for (int64_t i = 0; i < width; ++i) y[r * width + i] = narrow(wide(xr[i]) * s * (1.0f + w[i]));
    }
}

extern "C" void unit_norm_backward(int64_t rows, int64_t width, const uint16_t* dy, const uint16_t* x, const float* w,
                                   const float* rstd, uint16_t* dx, float* dw, int threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> local(width, 0.f);
        float* part = local.data();
#pragma omp for
        for (int64_t r = 0; r < rows; ++r) {
            const uint16_t *gr = dy + r * width, *xr = x + r * width;
            const float s = rstd[r];
            float dot = 0.f;
            for (int64_t i = 0; i < width; ++i) {
                const float g = wide(gr[i]), h = wide(xr[i]) * s;
                dot += g * (1.0f + w[i]) * h;
                part[i] += g * h;
            }
            dot /= width;
            for (int64_t i = 0; i < width; ++i)
                dx[r * width + i] = narrow(s * (wide(gr[i]) * (1.0f + w[i]) - wide(xr[i]) * s * dot));
        }
#pragma omp critical
        for (int64_t i = 0; i < width; ++i) dw[i] += part[i];
    }
}

extern "C" void swiglu_forward(int64_t count, const uint16_t* gate, const uint16_t* up, uint16_t* y, int threads) {
#pragma omp parallel for simd num_threads(threads)
    for (int64_t i = 0; i < count; ++i) {
        const float g = wide(gate[i]);
        y[i] = narrow(g * sigmoid(g) * wide(up[i]));
    }
}

extern "C" void swiglu_backward(int64_t count, const uint16_t* dy, const uint16_t* gate, const uint16_t* up,
                                uint16_t* dgate, uint16_t* dup, int threads) {
#pragma omp parallel for simd num_threads(threads)
    for (int64_t i = 0; i < count; ++i) {
        const float g = wide(gate[i]), s = sigmoid(g), d = wide(dy[i]);
        dup[i] = narrow(d * g * s);
        dgate[i] = narrow(d * wide(up[i]) * s * (1.0f + g * (1.0f - s)));
    }
}

// mixed [B, T, C] bf16, kernel [4, C] fp32; heads of `dim`: first `norm_heads` / 2 are q, as many k, the rest v.
extern "C" void short_conv_forward(int64_t batch, int64_t length, int64_t channels, int64_t norm_heads, int64_t dim,
                                   float q_factor, const uint16_t* mixed, const float* kernel, float* q, float* k,
                                   float* v, int threads) {
    const int64_t half = norm_heads / 2, rest = channels - norm_heads * dim;
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> row(channels);
        float* s = row.data();
#pragma omp for
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t t = 0; t < length; ++t) {
                const int64_t token = b * length + t;
                std::memset(s, 0, sizeof(float) * channels);
                for (int i = 0; i < TAPS; ++i) {
                    if (t + i < TAPS - 1) continue;
                    const uint16_t* x = mixed + (token + i - (TAPS - 1)) * channels;
                    const float* w = kernel + i * channels;
                    for (int64_t c = 0; c < channels; ++c) s[c] += wide(x[c]) * w[c];
                }
                for (int64_t c = 0; c < channels; ++c) s[c] = s[c] * sigmoid(s[c]);
                for (int64_t h = 0; h < norm_heads; ++h) {
                    const float* in = s + h * dim;
                    float sum = 0.f;
                    for (int64_t j = 0; j < dim; ++j) sum += in[j] * in[j];
                    const float f = (h < half ? q_factor : 1.0f) / std::sqrt(sum + 1e-6f);
                    float* out = (h < half ? q + (token * half + h) * dim : k + (token * half + h - half) * dim);
                    for (int64_t j = 0; j < dim; ++j) out[j] = in[j] * f;
                }
                std::memcpy(v + token * rest, s + norm_heads * dim, sizeof(float) * rest);
            }
    }
}

extern "C" void short_conv_backward(int64_t batch, int64_t length, int64_t channels, int64_t norm_heads, int64_t dim,
                                    float q_factor, const uint16_t* mixed, const float* kernel, const float* dq,
                                    const float* dk, const float* dv, uint16_t* dmixed, float* dkernel, int threads) {
    const int64_t half = norm_heads / 2, rest = channels - norm_heads * dim;
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> pre(channels), grad(channels), local(TAPS * channels, 0.f), dx((length + TAPS) * channels);
#pragma omp for
        for (int64_t b = 0; b < batch; ++b) {
            std::memset(dx.data(), 0, sizeof(float) * dx.size());
            for (int64_t t = 0; t < length; ++t) {
                const int64_t token = b * length + t;
                float *p = pre.data(), *g = grad.data();
                std::memset(p, 0, sizeof(float) * channels);
                for (int i = 0; i < TAPS; ++i) {
                    if (t + i < TAPS - 1) continue;
                    const uint16_t* x = mixed + (token + i - (TAPS - 1)) * channels;
                    const float* w = kernel + i * channels;
                    for (int64_t c = 0; c < channels; ++c) p[c] += wide(x[c]) * w[c];
                }
                for (int64_t h = 0; h < norm_heads; ++h) {
                    const float* d = (h < half ? dq + (token * half + h) * dim : dk + (token * half + h - half) * dim);
                    float sum = 0.f, dot = 0.f;
                    float* gh = g + h * dim;
                    const float* ph = p + h * dim;
                    for (int64_t j = 0; j < dim; ++j) {
                        const float s = ph[j] * sigmoid(ph[j]);
                        sum += s * s;
                        dot += s * d[j];
                    }
                    const float f = 1.0f / std::sqrt(sum + 1e-6f), scale = h < half ? q_factor : 1.0f;
                    for (int64_t j = 0; j < dim; ++j) {
                        const float s = ph[j] * sigmoid(ph[j]);
                        gh[j] = scale * f * (d[j] - s * f * f * dot);
                    }
                }
                std::memcpy(g + norm_heads * dim, dv + token * rest, sizeof(float) * rest);
                for (int64_t c = 0; c < channels; ++c) {
                    const float s = sigmoid(p[c]);
                    g[c] *= s * (1.0f + p[c] * (1.0f - s));
                }
                for (int i = 0; i < TAPS; ++i) {
                    if (t + i < TAPS - 1) continue;
                    const uint16_t* x = mixed + (token + i - (TAPS - 1)) * channels;
                    const float* w = kernel + i * channels;
                    float *part = local.data() + i * channels, *out = dx.data() + (t + i - (TAPS - 1)) * channels;
                    for (int64_t c = 0; c < channels; ++c) {
                        part[c] += g[c] * wide(x[c]);
                        out[c] += g[c] * w[c];
                    }
                }
            }
            uint16_t* target = dmixed + b * length * channels;
            for (int64_t i = 0; i < length * channels; ++i) target[i] = narrow(dx[i]);
        }
#pragma omp critical
        for (int64_t i = 0; i < TAPS * channels; ++i) dkernel[i] += local[i];
    }
}

// o [rows, dim] fp32 (one row a token and head), z and y [rows, dim] bf16, w [dim] fp32.
extern "C" void gated_norm_forward(int64_t rows, int64_t dim, float eps, const float* o, const uint16_t* z,
                                   const float* w, uint16_t* y, float* rstd, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        const float* in = o + r * dim;
        float sum = 0.f;
        for (int64_t j = 0; j < dim; ++j) sum += in[j] * in[j];
        const float s = rstd[r] = 1.0f / std::sqrt(sum / dim + eps);
        for (int64_t j = 0; j < dim; ++j) {
            const float g = wide(z[r * dim + j]);
            y[r * dim + j] = narrow(in[j] * s * w[j] * g * sigmoid(g));
        }
    }
}

extern "C" void gated_norm_backward(int64_t rows, int64_t dim, const uint16_t* dy, const float* o, const uint16_t* z,
                                    const float* w, const float* rstd, float* d_o, uint16_t* dz, float* dw, int threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> local(dim, 0.f), scratch(dim);
        float *part = local.data(), *dn = scratch.data();
#pragma omp for
        for (int64_t r = 0; r < rows; ++r) {
            const float s = rstd[r];
            const float* in = o + r * dim;
            float dot = 0.f;
            for (int64_t j = 0; j < dim; ++j) {
                const float g = wide(z[r * dim + j]), sg = sigmoid(g), d = wide(dy[r * dim + j]), h = in[j] * s;
                const float through = d * g * sg;
                dz[r * dim + j] = narrow(d * h * w[j] * sg * (1.0f + g * (1.0f - sg)));
                part[j] += through * h;
                dn[j] = through * w[j];
                dot += dn[j] * h;
            }
            dot /= dim;
            for (int64_t j = 0; j < dim; ++j) d_o[r * dim + j] = s * (dn[j] - in[j] * s * dot);
        }
#pragma omp critical
        for (int64_t j = 0; j < dim; ++j) dw[j] += part[j];
    }
}
