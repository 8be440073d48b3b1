// Attention over a paged cache. A task is a request's key/value head and a block of the rows that share it, so that every page
// is read once for all query heads of a group; where there are few of these, a task is one span of keys of them, and the
// spans are merged afterwards in the order in which one task would have.
#include "common/isa.h"
#include "common/pool.h"
#include "attention/spans.h"
#include "paged_attention/args.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

using namespace attention;

template <class T>
struct Pages {
    const T *k, *v;  // of the head
    const int32_t* table;
    int64_t page_size, token, base;  // base: place of the first key that counts

    void locate(int64_t first, int64_t count, const T** keys, const T** values) const {
        int64_t page = (base + first) / page_size, offset = (base + first) % page_size;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t slot = int64_t(table[page]) * page_size + offset;
            keys[i] = k + slot * token;
            values[i] = v + slot * token;
            if (++offset == page_size) offset = 0, ++page;
        }
    }
};

// What one request brings: its rows times the heads of a group, in blocks; `tasks` counts those of requests before it.
struct Request {
    int64_t rows, block, blocks, spans, tasks, parts;
};

struct Plan {
    const PagedAttentionArgs& a;
    Request* requests;
    float* parts = nullptr;
    int64_t tasks = 0;  // over all spans
    int64_t most_spans = 0;
    int64_t work = 0;

    int64_t group() const { return a.heads / a.kv_heads; }
    int64_t width() const { return rounded_up(a.dim, LANES) + 2; }

    int64_t base(int64_t i) const { return a.first_key ? a.first_key[i] : 0; }
    int64_t keys(int64_t i) const { return a.kv_len[i] - base(i); }

    // Returns how many floats the parts of all spans take.
    int64_t make() {
        int64_t floats = 0;
        for (int64_t i = 0; i < a.requests; ++i) {
            const int64_t rows = (a.q_start[i + 1] - a.q_start[i]) * group(), keys = this->keys(i);
            const int64_t block = rows > 0 ? rows_at_once(rows, a.dim) : 1, spans = (keys + SPAN - 1) / SPAN;
            requests[i] = {rows, block, rows > 0 ? (rows + block - 1) / block : 0, spans > 0 ? spans : 1, tasks, floats};
            tasks += a.kv_heads * requests[i].blocks;
            floats += a.kv_heads * (rows > 0 ? rows : 0) * requests[i].spans * width();
            most_spans = requests[i].spans > most_spans ? requests[i].spans : most_spans;
            work += rows * keys * a.kv_heads * a.dim;
        }
        return floats;
    }

    Rows rows(int64_t i, int64_t head, int64_t block) const {
        const Request& r = requests[i];
        const int64_t first = block * r.block, queries = r.rows / group();
        const int64_t at = (a.q_start[i] * a.heads + head * group()) * a.dim;
        return {a.q + at,
                a.heads * a.dim,
                a.dim,
                a.out + at,
                a.heads * a.dim,
                group(),
                first,
                smaller_of(r.block, r.rows - first),
                a.causal ? keys(i) - queries + 1 : keys(i),
                a.causal ? 1 : 0,
                a.dim};
    }

    Part part(int64_t i, int64_t head, int64_t block, int64_t span) const {
        const Request& r = requests[i];
        const int64_t first = block * r.block, count = smaller_of(r.block, r.rows - first);
        float* const memory = parts + r.parts + ((head * r.spans + span) * r.rows + first) * width();
        return Part::at(memory, count, rounded_up(a.dim, LANES));
    }

    template <class T>
    Pages<T> pages(int64_t i, int64_t head) const {
        return {static_cast<const T*>(a.k_cache) + head * a.dim, static_cast<const T*>(a.v_cache) + head * a.dim,
                a.page_table + i * a.table_row, a.page_size, a.kv_heads * a.dim, base(i)};
    }

    // f(request, head, block) of a task.
    template <class Function>
    void with(int64_t task, Function f) const {
        int64_t low = 0, high = a.requests - 1;
        while (low < high) {
            const int64_t middle = (low + high + 1) / 2;
            if (requests[middle].tasks <= task) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        const int64_t within = task - requests[low].tasks;
        f(low, within / requests[low].blocks, within % requests[low].blocks);
    }
};

Workspace workspace(int64_t rows, int64_t dim) {
    const int64_t bytes = Workspace::floats(rows, dim) * int64_t(sizeof(float));
    return Workspace::at(static_cast<float*>(scratch(1, bytes)), rows, dim);
}

float query_scale(const PagedAttentionArgs& a) { return a.scale * a.k_scale * LOG2_E; }

template <class T>
void whole(const Plan& plan, bool serial) {
    parallel_for(plan.tasks, serial, [&](int64_t task) {
        plan.with(task, [&](int64_t i, int64_t head, int64_t block) {
            const Rows rows = plan.rows(i, head, block);
            Workspace w = workspace(rows.count, rows.dim);
            take_queries(rows, query_scale(plan.a), w);
            clear(rows, w.sum);
            for (int64_t key = 0; key < rows.most_keys(); key += SPAN) {
                attend_span<T>(rows, w, key, plan.pages<T>(i, head));
                merge(rows, w.sum, w.part, key);
            }
            write_rows(rows, w.sum, plan.a.v_scale);
        });
    });
}

template <class T>
void by_spans(const Plan& plan) {
    parallel_for(plan.tasks * plan.most_spans, false, [&](int64_t at) {
        const int64_t span = at % plan.most_spans;
        plan.with(at / plan.most_spans, [&](int64_t i, int64_t head, int64_t block) {
            const Rows rows = plan.rows(i, head, block);
            if (span * SPAN >= rows.most_keys()) return;
            Workspace w = workspace(rows.count, rows.dim);
            w.part = plan.part(i, head, block, span);
            take_queries(rows, query_scale(plan.a), w);
            attend_span<T>(rows, w, span * SPAN, plan.pages<T>(i, head));
        });
    });
    parallel_for(plan.tasks, false, [&](int64_t task) {
        plan.with(task, [&](int64_t i, int64_t head, int64_t block) {
            const Rows rows = plan.rows(i, head, block);
            const Workspace w = workspace(rows.count, rows.dim);
            clear(rows, w.sum);
            for (int64_t key = 0; key < rows.most_keys(); key += SPAN) {
                merge(rows, w.sum, plan.part(i, head, block, key / SPAN), key);
            }
            write_rows(rows, w.sum, plan.a.v_scale);
        });
    });
}

template <class T>
void run(Plan& plan, int64_t floats) {
    const bool serial = plan.work < 1 << 18;
    if (!serial && plan.most_spans > 1 && num_threads() > 1 && plan.tasks < 2 * num_threads()) {
        plan.parts = static_cast<float*>(scratch(2, floats * int64_t(sizeof(float))));
        by_spans<T>(plan);
    } else {
        whole<T>(plan, serial);
    }
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args) {
    if (args.requests == 0) return;
    Plan plan{args, static_cast<Request*>(scratch(0, args.requests * int64_t(sizeof(Request))))};
    const int64_t floats = plan.make();
    if (plan.tasks == 0) return;
    if (args.is_fp8) {
        run<uint8_t>(plan, floats);
    } else {
        run<uint16_t>(plan, floats);
    }
}

}  // namespace ocrquant::OCRQUANT_ISA
