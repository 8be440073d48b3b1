#include <nanobind/stl/tuple.h>

#include "attention_inputs/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(attention_inputs, AttentionInputsArgs)

namespace ocrquant {

void bind_attention_inputs(nb::module_& m) {
    using Strided = std::tuple<Address, int64_t, int64_t>;
    using Sizes = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;
    m.def(
        "attention_inputs",
        [](Strided q, Strided k, Strided v, Address q_norm, Address k_norm, Address cos, Address sin, Address slot_mapping,
           Address out_q, Address k_cache, Address v_cache, Sizes rows_heads_kv_heads_dim_half, float eps, float k_scale,
           float v_scale, bool is_fp8) {
            AttentionInputsArgs args{};
            args.q = at<const uint16_t>(std::get<0>(q));
            args.k = at<const uint16_t>(std::get<0>(k));
            args.v = at<const uint16_t>(std::get<0>(v));
            args.q_row = std::get<1>(q), args.q_head = std::get<2>(q);
            args.k_row = std::get<1>(k), args.k_head = std::get<2>(k);
            args.v_row = std::get<1>(v), args.v_head = std::get<2>(v);
            args.q_norm = at<const float>(q_norm), args.k_norm = at<const float>(k_norm);
            args.cos = at<const float>(cos), args.sin = at<const float>(sin);
            args.slot_mapping = at<const int32_t>(slot_mapping);
            args.out_q = at<uint16_t>(out_q);
            args.k_cache = at<void>(k_cache), args.v_cache = at<void>(v_cache);
            std::tie(args.rows, args.heads, args.kv_heads, args.dim, args.half) = rows_heads_kv_heads_dim_half;
            args.eps = eps, args.k_scale = k_scale, args.v_scale = v_scale, args.is_fp8 = is_fp8;
            launch("attention_inputs", OCRQUANT_PICK(attention_inputs), args);
        },
        release_gil());
}

}  // namespace ocrquant
