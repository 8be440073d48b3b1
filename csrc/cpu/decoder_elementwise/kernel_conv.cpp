// Short convolution, SiLU and norms of q and k, for training: everything between the projection and the delta rule.
#include "decoder_elementwise/args.h"
#include "decoder_elementwise/shares.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

constexpr int64_t TAPS = 4;
constexpr float EPSILON = 1e-6f;

float* floats(int slot, int64_t count) { return static_cast<float*>(scratch(slot, count * int64_t(sizeof(float)))); }

// x[i] is the input of tap i of token t of sequence b: a row of `mixed`, or of zeros before the sequence.
struct Inputs {
    const uint16_t* x[TAPS];

    Inputs(const ShortConvArgs& a, int64_t b, int64_t t, const uint16_t* zeros) {
        for (int64_t i = 0; i < TAPS; ++i) {
            const int64_t from = t + i - (TAPS - 1);
            x[i] = from < 0 ? zeros : a.mixed + (b * a.length + from) * a.channels;
        }
    }
};

void convolve(const ShortConvArgs& a, const uint16_t* const (&x)[TAPS], float* to) {
    const float* const w = a.taps;
    const int64_t c = a.channels;
    const auto four = [](Turn x0, Turn w0, Turn x1, Turn w1, Turn x2, Turn w2, Turn x3, Turn w3) {
        return each([&](int i) {
            return x0.v[i] * w0.v[i] + x1.v[i] * w1.v[i] + x2.v[i] * w2.v[i] + x3.v[i] * w3.v[i];
        });
    };
    map(to, c, four, x[0], w, x[1], w + c, x[2], w + 2 * c, x[3], w + 3 * c);
}

const uint16_t* zeros(const ShortConvArgs& a, int slot) {
    void* const row = scratch(slot, a.channels * 2);
    std::memset(row, 0, size_t(a.channels) * 2);
    return static_cast<const uint16_t*>(row);
}

inline float square_sum(const float* x, int64_t count) {
    return sum(count, [](Turn v) { return v * v; }, x);
}

// d_s of one head of q or k, `s` the convolution behind SiLU: the gradient through s / |s| times `factor`.
void through_norm(const float* s, const float* d, float factor, int64_t dim, float* d_s) {
    const float f = 1.0f / __builtin_sqrtf(square_sum(s, dim) + EPSILON);
    const float along = f * f * sum(dim, [](Turn v, Turn g) { return v * g; }, s, d);
    const float scale = factor * f;
    map(d_s, dim, [scale, along](Turn v, Turn g) { return scale * (g - v * along); }, s, d);
}

struct Rows {
    float *before, *gate, *after;  // [C] each: the convolution, its sigmoid, its silu
    float* gradients;              // [4, C]: of the last four tokens, token t in row t % 4
};

// The gradient of the convolution's sum at one token.
void gradient_of_sum(const ShortConvBackwardArgs& a, int64_t token, const Rows& rows, float* to) {
    const ShortConvArgs& in = a.forward;
    const int64_t width = in.key_heads * in.key_dim, rest = in.channels - 2 * width;
    map(rows.gate, in.channels, [](Turn v) { return sigmoid(v); }, rows.before);
    map(rows.after, 2 * width, [](Turn v, Turn s) { return v * s; }, rows.before, rows.gate);
    for (int64_t at = 0; at < width; at += in.key_dim) {
        through_norm(rows.after + at, a.d_q + token * width + at, in.q_factor, in.key_dim, to + at);
        through_norm(rows.after + width + at, a.d_k + token * width + at, 1.0f, in.key_dim, to + width + at);
    }
    std::memcpy(to + 2 * width, a.d_v + token * rest, size_t(rest) * sizeof(float));
    map(to, in.channels, [](Turn d, Turn x, Turn s) { return d * silu_slope(x, s); }, to, rows.before, rows.gate);
}

// Token t's input meets tap i at token t + 3 - i.
void gradient_of_input(const ShortConvBackwardArgs& a, int64_t b, int64_t t, const Rows& rows) {
    const int64_t c = a.forward.channels;
    const float* const w = a.forward.taps;
    const auto row = [&](int64_t i) { return rows.gradients + (t + TAPS - 1 - i) % TAPS * c; };
    const auto four = [](Turn g0, Turn w0, Turn g1, Turn w1, Turn g2, Turn w2, Turn g3, Turn w3) {
        return each([&](int i) {
            return g0.v[i] * w0.v[i] + g1.v[i] * w1.v[i] + g2.v[i] * w2.v[i] + g3.v[i] * w3.v[i];
        });
    };
    uint16_t* const to = a.d_mixed + (b * a.forward.length + t) * c;
    map(to, c, four, row(0), w, row(1), w + c, row(2), w + 2 * c, row(3), w + 3 * c);
}

void sequence_backward(const ShortConvBackwardArgs& a, int64_t b, const uint16_t* none, const Rows& rows, float* share) {
    const ShortConvArgs& in = a.forward;
    const int64_t c = in.channels, last = TAPS - 1;
    for (int64_t t = 0; t < in.length + last; ++t) {
        float* const gradient = rows.gradients + t % TAPS * c;
        if (t < in.length) {
            const Inputs inputs(in, b, t, none);
            convolve(in, inputs.x, rows.before);
            gradient_of_sum(a, b * in.length + t, rows, gradient);
            for (int64_t i = t < last ? last - t : 0; i < TAPS; ++i) {
                const auto product = [](Turn sofar, Turn g, Turn x) { return sofar + g * x; };
                map(share + i * c, c, product, share + i * c, gradient, inputs.x[i]);
            }
        } else {
            std::memset(gradient, 0, size_t(c) * sizeof(float));
        }
        if (t >= last) gradient_of_input(a, b, t - last, rows);
    }
}

bool is_small(const ShortConvArgs& a) { return a.batch * a.length * a.channels < SERIAL_ELEMENTS; }

}  // namespace

void short_conv(const ShortConvArgs& a) {
    const int64_t width = a.key_heads * a.key_dim, rest = a.channels - 2 * width;
    for_rows(a.batch * a.length, a.channels, [&](int64_t token) {
        const int64_t t = token % a.length;
        const Inputs inputs(a, token / a.length, t, t < TAPS - 1 ? zeros(a, 1) : nullptr);
        float* const s = floats(0, a.channels);
        convolve(a, inputs.x, s);
        map(s, a.channels, [](Turn v) { return silu(v); }, s);
        for (int64_t at = 0; at < 2 * width; at += a.key_dim) {
            const bool is_query = at < width;
            const float f = (is_query ? a.q_factor : 1.0f) / __builtin_sqrtf(square_sum(s + at, a.key_dim) + EPSILON);
            float* const to = is_query ? a.q + token * width + at : a.k + token * width + at - width;
            map(to, a.key_dim, [f](Turn v) { return v * f; }, s + at);
        }
        std::memcpy(a.v + token * rest, s + 2 * width, size_t(rest) * sizeof(float));
    });
}

void short_conv_backward(const ShortConvBackwardArgs& a) {
    const ShortConvArgs& in = a.forward;
    const int64_t c = in.channels;
    sum_of_shares(in.batch, 1, TAPS * c, is_small(in), a.d_taps, [&](int64_t first, int64_t last, float* share) {
        const uint16_t* const none = zeros(in, 1);
        float* const space = floats(2, (3 + TAPS) * c);
        const Rows rows{space, space + c, space + 2 * c, space + 3 * c};
        for (int64_t b = first; b < last; ++b) sequence_backward(a, b, none, rows, share);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
