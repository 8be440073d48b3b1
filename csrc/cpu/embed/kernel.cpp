// Rows of a table, or of the images' own embeddings; NaN where an index lies outside.
#include "common/produce.h"
#include "embed/args.h"

namespace ocrquant::OCRQUANT_ISA {

void embed(const EmbedArgs& a) {
    // Copies cost a tenth of what the producers' arithmetic costs.
    for_rows(a.rows, a.width / 8, [&](int64_t r) {
        const bool is_image = a.images && a.image_index[r] >= 0;
        const int64_t index = is_image ? a.image_index[r] : a.tokens[r];
        uint16_t* const y = a.out + r * a.width;
        if (index >= 0 && index < (is_image ? a.num_images : a.vocabulary)) {
            std::memcpy(y, (is_image ? a.images : a.table) + index * a.width, size_t(a.width) * sizeof(uint16_t));
        } else {
            for (int64_t i = 0; i < a.width; ++i) y[i] = 0x7fc0;
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
