// DeltaRows as Python makes it; the ops that take it need its type registered once.
#pragma once

#include "common/bind.h"
#include "delta/args.h"

namespace ocrquant {

inline void bind_delta_rows(nb::module_& m) {
    nb::class_<DeltaRows>(m, "DeltaRows")
        .def("__init__", [](DeltaRows* rows, Address mixed, int64_t mixed_stride, Address a, int64_t a_stride, Address b,
                            int64_t b_stride, Address a_log, Address dt_bias, Address q_start, Address slots, Address out,
                            int64_t requests, int64_t key_heads, int64_t heads, int64_t key_dim, int64_t value_dim) {
            new (rows) DeltaRows{at<const uint16_t>(mixed), mixed_stride, at<const uint16_t>(a), a_stride,
                                 at<const uint16_t>(b), b_stride, at<const float>(a_log), at<const float>(dt_bias),
                                 at<const int32_t>(q_start), at<const int32_t>(slots), at<uint16_t>(out), requests,
                                 key_heads, heads, key_dim, value_dim};
        });
}

}  // namespace ocrquant
