#include "embed/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(embed, EmbedArgs)

namespace ocrquant {

void bind_embed(nb::module_& m) {
    m.def(
        "embed",
        [](Address table, Address tokens, Address images, Address image_index, Address out, int64_t rows,
           int64_t width, int64_t vocabulary, int64_t num_images, int64_t panel_stride) {
            launch("embed", OCRQUANT_PICK(embed),
                   EmbedArgs{at<const uint16_t>(table), at<const int32_t>(tokens), at<const uint16_t>(images),
                             at<const int32_t>(image_index), at<uint16_t>(out), rows, width, vocabulary, num_images,
                             panel_stride});
        },
        release_gil());
}

}  // namespace ocrquant
