#include <nanobind/stl/tuple.h>

#include "common/bind.h"
#include "packed_attention/args.h"

OCRQUANT_DECLARE(packed_attention, PackedAttentionArgs)

namespace ocrquant {

using Strided = std::tuple<Address, int64_t, int64_t>;

void bind_packed_attention(nb::module_& m) {
    m.def(
        "packed_attention",
        [](Strided q, Strided k, Strided v, Address starts, int64_t segments, int64_t heads, int64_t dim, float scale,
           Address out) {
            PackedAttentionArgs args{};
            args.q = at<const uint16_t>(std::get<0>(q));
            args.k = at<const uint16_t>(std::get<0>(k));
            args.v = at<const uint16_t>(std::get<0>(v));
            args.q_row = std::get<1>(q), args.q_head = std::get<2>(q);
            args.k_row = std::get<1>(k), args.k_head = std::get<2>(k);
            args.v_row = std::get<1>(v), args.v_head = std::get<2>(v);
            args.starts = at<const int32_t>(starts);
            args.segments = segments, args.heads = heads, args.dim = dim;
            args.scale = scale;
            args.out = at<uint16_t>(out);
            launch("packed_attention", OCRQUANT_PICK_AMX(packed_attention), args);
        },
        release_gil());
}

}  // namespace ocrquant
