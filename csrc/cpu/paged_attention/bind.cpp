#include <nanobind/stl/tuple.h>

#include "common/bind.h"
#include "paged_attention/args.h"

OCRQUANT_DECLARE(paged_attention, PagedAttentionArgs)

namespace ocrquant {

void bind_paged_attention(nb::module_& m) {
    using Four = std::tuple<int64_t, int64_t, int64_t, int64_t>;
    m.def(
        "paged_attention",
        [](Address q, Address k_cache, Address v_cache, Address page_table, Address q_start, Address kv_len,
           Address first_key, Address out,
           int64_t requests, Four heads_kv_heads_dim_page_size, int64_t table_row, float scale, float k_scale, float v_scale,
           bool is_fp8, bool causal) {
            const auto [heads, kv_heads, dim, page_size] = heads_kv_heads_dim_page_size;
            const PagedAttentionArgs args{at<const uint16_t>(q),
                                          at<const void>(k_cache),
                                          at<const void>(v_cache),
                                          at<const int32_t>(page_table),
                                          at<const int32_t>(q_start),
                                          at<const int32_t>(kv_len),
                                          at<const int32_t>(first_key),
                                          at<uint16_t>(out),
                                          requests,
                                          heads,
                                          kv_heads,
                                          dim,
                                          page_size,
                                          table_row,
                                          scale,
                                          k_scale,
                                          v_scale,
                                          is_fp8,
                                          causal};
            launch("paged_attention", OCRQUANT_PICK_AMX(paged_attention), args);
        },
        release_gil());
}

}  // namespace ocrquant
