#include <nanobind/stl/tuple.h>

#include "common/bind.h"
#include "sample/args.h"
#include "sample/stream.h"

OCRQUANT_DECLARE(sample, SampleArgs)

namespace ocrquant {

void bind_sample(nb::module_& m) {
    m.def(
        "sample",
        [](std::tuple<Address, int64_t> logits, int64_t rows, int64_t vocabulary, Address temperature, Address top_p, Address seed,
           Address position, Address out_tokens, Address out_gap) {
            const SampleArgs args{at<const float>(std::get<0>(logits)),
                                  std::get<1>(logits),
                                  rows,
                                  vocabulary,
                                  at<const float>(temperature),
                                  at<const float>(top_p),
                                  at<const int32_t>(seed),
                                  at<const int32_t>(position),
                                  at<int32_t>(out_tokens),
                                  at<float>(out_gap)};
            launch("sample", OCRQUANT_PICK(sample), args);
        },
        release_gil());
    m.def("uniform", &uniform);
}

}  // namespace ocrquant
