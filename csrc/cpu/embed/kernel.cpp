// Rows of a table, or of the images' own embeddings; NaN where an index lies outside.
#include "common/produce.h"
#include "embed/args.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

void copy_from_panel(const EmbedArgs& a, int64_t index, uint16_t* y) {
    const uint16_t* const panel = a.table + index / kEmbedPanel * a.panel_stride;
    const uint16_t* pair = panel + index % kEmbedPanel * 2;
    int64_t i = 0;
    for (; i + 2 <= a.width; i += 2, pair += 2 * kEmbedPanel) std::memcpy(y + i, pair, 2 * sizeof(uint16_t));
    if (i < a.width) y[i] = *pair;
}

}  // namespace

void embed(const EmbedArgs& a) {
    // Copies cost a tenth of what the producers' arithmetic costs.
    for_rows(a.rows, a.width / 8, [&](int64_t r) {
        const bool is_image = a.images && a.image_index[r] >= 0;
        const int64_t index = is_image ? a.image_index[r] : a.tokens[r];
        uint16_t* const y = a.out + r * a.width;
        const bool is_inside = index >= 0 && index < (is_image ? a.num_images : a.vocabulary);
        if (is_inside && !is_image && a.panel_stride) {
            copy_from_panel(a, index, y);
        } else if (is_inside) {
            std::memcpy(y, (is_image ? a.images : a.table) + index * a.width, size_t(a.width) * sizeof(uint16_t));
        } else {
            for (int64_t i = 0; i < a.width; ++i) y[i] = 0x7fc0;
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
