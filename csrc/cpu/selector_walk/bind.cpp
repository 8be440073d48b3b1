#include <nanobind/stl/tuple.h>

#include "common/bind.h"
#include "selector_walk/args.h"

OCRQUANT_DECLARE(selector_walk, SelectorWalkArgs)

namespace ocrquant {

void bind_selector_walk(nb::module_& m) {
    using Six = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
    m.def(
        "selector_walk",
        [](Address logits, Address gate, Address predecessor, Address successor, Address tokens, Address out_tokens,
           Address out_alone, Six rows_vocabulary_rank_block_top_k_gate_row) {
            const auto [rows, vocabulary, rank, block, top_k, gate_row] = rows_vocabulary_rank_block_top_k_gate_row;
            const SelectorWalkArgs args{at<const float>(logits),
                                        at<const uint16_t>(gate),
                                        at<const uint16_t>(predecessor),
                                        at<const uint16_t>(successor),
                                        at<const int32_t>(tokens),
                                        at<int32_t>(out_tokens),
                                        at<int32_t>(out_alone),
                                        rows,
                                        vocabulary,
                                        rank,
                                        block,
                                        top_k,
                                        gate_row};
            launch("selector_walk", OCRQUANT_PICK(selector_walk), args);
        },
        release_gil());
}

}  // namespace ocrquant
