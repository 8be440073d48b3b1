// What lies between the matrix products of a Gated DeltaNet decoder, forward and backward, for training.
#include "common/bind.h"
#include "decoder_elementwise/args.h"

OCRQUANT_DECLARE(unit_norm_backward, UnitNormBackwardArgs)
OCRQUANT_DECLARE(swiglu, SwigluArgs)
OCRQUANT_DECLARE(swiglu_backward, SwigluBackwardArgs)
OCRQUANT_DECLARE(short_conv, ShortConvArgs)
OCRQUANT_DECLARE(short_conv_backward, ShortConvBackwardArgs)
OCRQUANT_DECLARE(gated_norm, GatedNormArgs)
OCRQUANT_DECLARE(gated_norm_backward, GatedNormBackwardArgs)

namespace ocrquant {

namespace {

using Bf16 = const uint16_t;

void bind_norms(nb::module_& m) {
    m.def(
        "unit_norm_backward",
        [](Address d_y, Address x, Address weight, Address d_x, Address d_weight, int64_t rows, int64_t width, float eps) {
            launch("unit_norm_backward", OCRQUANT_PICK(unit_norm_backward),
                   UnitNormBackwardArgs{at<Bf16>(d_y), at<Bf16>(x), at<const float>(weight), at<uint16_t>(d_x),
                                        at<float>(d_weight), rows, width, eps});
        },
        release_gil());
    m.def(
        "gated_norm",
        [](Address o, Address z, Address weight, Address y, int64_t rows, int64_t dim, float eps) {
            launch("gated_norm", OCRQUANT_PICK(gated_norm),
                   GatedNormArgs{at<const float>(o), at<Bf16>(z), at<const float>(weight), at<uint16_t>(y), rows, dim, eps});
        },
        release_gil());
    m.def(
        "gated_norm_backward",
        [](Address o, Address z, Address weight, Address d_y, Address d_o, Address d_z, Address d_weight, int64_t rows,
           int64_t dim, float eps) {
            const GatedNormArgs forward{at<const float>(o), at<Bf16>(z), at<const float>(weight), nullptr, rows, dim, eps};
            launch("gated_norm_backward", OCRQUANT_PICK(gated_norm_backward),
                   GatedNormBackwardArgs{forward, at<Bf16>(d_y), at<float>(d_o), at<uint16_t>(d_z), at<float>(d_weight)});
        },
        release_gil());
}

void bind_swiglu(nb::module_& m) {
    m.def(
        "swiglu",
        [](Address gate, Address up, Address y, int64_t count) {
            launch("swiglu", OCRQUANT_PICK(swiglu), SwigluArgs{at<Bf16>(gate), at<Bf16>(up), at<uint16_t>(y), count});
        },
        release_gil());
    m.def(
        "swiglu_backward",
        [](Address d_y, Address gate, Address up, Address d_gate, Address d_up, int64_t count) {
            launch("swiglu_backward", OCRQUANT_PICK(swiglu_backward),
                   SwigluBackwardArgs{at<Bf16>(d_y), at<Bf16>(gate), at<Bf16>(up), at<uint16_t>(d_gate), at<uint16_t>(d_up),
                                      count});
        },
        release_gil());
}

void bind_short_conv(nb::module_& m) {
    m.def(
        "short_conv",
        [](Address mixed, Address taps, Address q, Address k, Address v, int64_t batch, int64_t length, int64_t channels,
           int64_t key_heads, int64_t key_dim, float q_factor) {
            launch("short_conv", OCRQUANT_PICK(short_conv),
                   ShortConvArgs{at<Bf16>(mixed), at<const float>(taps), at<float>(q), at<float>(k), at<float>(v), batch, length,
                                 channels, key_heads, key_dim, q_factor});
        },
        release_gil());
    m.def(
        "short_conv_backward",
        [](Address mixed, Address taps, Address d_q, Address d_k, Address d_v, Address d_mixed, Address d_taps, int64_t batch,
           int64_t length, int64_t channels, int64_t key_heads, int64_t key_dim, float q_factor) {
            const ShortConvArgs forward{at<Bf16>(mixed), at<const float>(taps), nullptr, nullptr, nullptr, batch, length,
                                        channels, key_heads, key_dim, q_factor};
            launch("short_conv_backward", OCRQUANT_PICK(short_conv_backward),
                   ShortConvBackwardArgs{forward, at<const float>(d_q), at<const float>(d_k), at<const float>(d_v),
                                         at<uint16_t>(d_mixed), at<float>(d_taps)});
        },
        release_gil());
}

}  // namespace

void bind_decoder_elementwise(nb::module_& m) {
    bind_norms(m);
    bind_swiglu(m);
    bind_short_conv(m);
}

}  // namespace ocrquant
