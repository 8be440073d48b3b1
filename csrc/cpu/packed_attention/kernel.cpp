// Bidirectional attention inside packed segments. One task is a segment's head and a block of its rows.
#include "common/isa.h"
#include "common/pool.h"
#include "attention/spans.h"
#include "packed_attention/args.h"
#if defined(OCRQUANT_WITH_AMX)
#include "packed_attention/amx_segment.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

using namespace attention;

struct Segment {
    const uint16_t *k, *v;
    int64_t k_row, v_row;

    void locate(int64_t first, int64_t count, const uint16_t** keys, const uint16_t** values) const {
        for (int64_t i = 0; i < count; ++i) {
            keys[i] = k + (first + i) * k_row;
            values[i] = v + (first + i) * v_row;
        }
    }
};

// Largest scores are looked for before they are scaled, so a scale that turns them round is left to the other code.
bool is_in_tiles(const PackedAttentionArgs& a) { return in_tiles(a.dim) && a.scale >= 0.f; }

// Rows of one task.
int64_t rows_of_task(const PackedAttentionArgs& a, int64_t length, int threads) {
    if (!is_in_tiles(a)) return rows_at_once(length, a.dim);
    // Keys and values are staged anew for each task: as few as fit in the second-level cache, or so many that heads of one image
    // keep all threads busy (384 patches of 3 heads by one thread: 277 us at once, 299 in tasks of 192;
    // Xeon family 6 model 207, 2026-11-30).
    const int64_t most = threads == 1 ? 1024 : 192;
    const int64_t blocks = (length + most - 1) / most;
    return blocks <= 1 ? length : rounded_up((length + blocks - 1) / blocks, LANES);
}

#if defined(OCRQUANT_WITH_AMX)
void attend_in_tiles(const PackedAttentionArgs& a, int64_t begin, int64_t length, int64_t head, int64_t first, int64_t count) {
    const SegmentRows rows{a.q + begin * a.q_row + head * a.q_head,
                           a.k + begin * a.k_row + head * a.k_head,
                           a.v + begin * a.v_row + head * a.v_head,
                           a.q_row,
                           a.k_row,
                           a.v_row,
                           length,
                           first,
                           count,
                           a.dim,
                           a.scale * LOG2_E,
                           a.out + (begin * a.heads + head) * a.dim,
                           a.heads * a.dim};
    const int64_t bytes = SegmentMemory::floats(rounded_up(count, LANES), a.dim) * int64_t(sizeof(float));
    attend_segment(rows, static_cast<float*>(scratch(1, bytes)));
}
#endif

void attend(const PackedAttentionArgs& a, int64_t begin, int64_t length, int64_t head, int64_t first, int64_t count) {
#if defined(OCRQUANT_WITH_AMX)
    if (is_in_tiles(a)) return attend_in_tiles(a, begin, length, head, first, count);
#endif
    const Rows rows{a.q + begin * a.q_row + head * a.q_head,
                    a.q_row,
                    0,
                    a.out + (begin * a.heads + head) * a.dim,
                    a.heads * a.dim,
                    1,
                    first,
                    count,
                    length,
                    0,
                    a.dim};
    const Segment source{a.k + begin * a.k_row + head * a.k_head, a.v + begin * a.v_row + head * a.v_head, a.k_row, a.v_row};
    const int64_t bytes = Workspace::floats(count, a.dim) * int64_t(sizeof(float));
    const Workspace w = Workspace::at(static_cast<float*>(scratch(1, bytes)), count, a.dim);
    load_queries(rows, a.scale * LOG2_E, w.q);
    clear(rows, w.sum);
    for (int64_t key = 0; key < length; key += SPAN) {
        attend_span<uint16_t>(rows, w, key, source);
        merge(rows, w.sum, w.part, key);
    }
    write_rows(rows, w.sum, 1.f);
}

}  // namespace

void packed_attention(const PackedAttentionArgs& args) {
    // One parallel job a segment would leave threads idle at the end of each: tasks of all segments go into one.
    int64_t* const first_task = static_cast<int64_t*>(scratch(0, (args.segments + 1) * int64_t(sizeof(int64_t))));
    const int threads = num_threads();
    int64_t tasks = 0, work = 0;
    for (int64_t i = 0; i < args.segments; ++i) {
        const int64_t length = args.starts[i + 1] - args.starts[i];
        first_task[i] = tasks;
        if (length <= 0) continue;
        const int64_t block = rows_of_task(args, length, threads);
        tasks += args.heads * ((length + block - 1) / block);
        work += length * length * args.heads * args.dim;
    }
    first_task[args.segments] = tasks;
    parallel_for(tasks, work < 1 << 20, [&](int64_t task) {
        int64_t i = 0;
        while (first_task[i + 1] <= task) ++i;
        const int64_t begin = args.starts[i], length = args.starts[i + 1] - begin;
        const int64_t block = rows_of_task(args, length, threads), blocks = (length + block - 1) / block;
        const int64_t head = (task - first_task[i]) / blocks, first = (task - first_task[i]) % blocks * block;
        attend(args, begin, length, head, first, smaller_of(block, length - first));
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
