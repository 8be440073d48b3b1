// Rows of requests behind a checkpoint and its records: outputs, a record of each row, and a fold where it is due.
//
// One task is one head of one request. With T rows, the T keys and T queries are one operand of 2T rows, and S0 is read once
// for all of them:
//
//   HX = X S0                          [2T, V]      (one row: the two products of `step`, streaming)
//   D  = K X^T                         [P + T, 2T]  keys of the records and of the rows, times every key and query
//   HX = e^G HX + (rho o D[:P])^T U    [2T, V]      the records' part of S_P
//   u_s, o_s by substitution over the T rows (replay/reference.py has the formulas)
//
// With P = 0 and T = 1 every number is the one that `step` computes.
#include "common/isa.h"
#include "common/pool.h"
#include "delta/step.h"
#include "replay/records.h"

namespace ocrquant::OCRQUANT_ISA {

using namespace delta;

namespace {

struct Window {
    int64_t count, padded;  // T; 2T rounded up to whole registers
    float* x;               // [2T, K]: keys, then queries
    float* xt;              // [K, padded]
    float* hx;              // [2T, V]
    float* u;               // [T, V]
    float* log_gate;        // [T]
    float* since;           // [T], sum of log gates up to and with the row
    float* beta;            // [T]
    float* dots;            // [T, padded], keys of the rows times x
};

int64_t padded(int64_t count) { return (2 * count + LANES - 1) / LANES * LANES; }

int64_t rows_floats(const ReplayRowsArgs& args, int64_t count) {
    const int64_t k = args.rows.key_dim, v = args.rows.value_dim, l = args.ring.history, all = l + count;
    return records_floats(args.ring, k, v) + Space::rounded(2 * count * k) + Space::rounded(k * padded(count)) +
           Space::rounded(2 * count * v) + Space::rounded(count * v) + 3 * Space::rounded(count) +
           Space::rounded(count * padded(count)) + Space::rounded(l * padded(count)) + Space::rounded(all) +
           Space::rounded(all * k);
}

Window prepare(const DeltaRows& rows, int64_t head, int64_t first, int64_t count, Space& space) {
    const int64_t k = rows.key_dim, v = rows.value_dim, width = padded(count);
    Window w{count,
             width,
             space.take(2 * count * k),
             space.take(k * width),
             space.take(2 * count * v),
             space.take(count * v),
             space.take(count),
             space.take(count),
             space.take(count),
             space.take(count * width)};
    float sum = 0.f;
    for (int64_t s = 0; s < count; ++s) {
        key_of(rows, first + s, head, w.x + s * k);
        query_of(rows, first + s, head, w.x + (count + s) * k);
        const Gates gates = gates_of(rows, first + s, head);
        w.log_gate[s] = gates.log_gate;
        w.beta[s] = gates.beta;
        w.since[s] = sum += gates.log_gate;
    }
    memset(w.xt, 0, size_t(k * width) * sizeof(float));
    for (int64_t c = 0; c < 2 * count; ++c) {
        for (int64_t i = 0; i < k; ++i) w.xt[i * width + c] = w.x[c * k + i];
    }
    return w;
}

// hx = x S_P
void read_past(const ReplayRowsArgs& args, const float* state, const Records& records, const float* weights, float total_gate,
               Window& w, float* dots) {
    const int64_t k = args.rows.key_dim, v = args.rows.value_dim, width = w.padded;
    if (w.count == 1) {
        read_state<2>(state, k, v, {w.x, w.x + k}, {w.hx, w.hx + v});
    } else {
        accumulate({w.hx, v, 2 * w.count, v, Start::zero, 0.f, w.x, k, 1, state, v, k});
    }
    Start start = Start::scale;
    for (const Piece& piece : records.pieces) {
        if (piece.count == 0) continue;
        accumulate({dots, width, piece.count, width, Start::zero, 0.f, piece.k, k, 1, w.xt, width, k});
        for (int64_t j = 0; j < piece.count; ++j) scaled(dots + j * width, weights[j], width, dots + j * width);
        accumulate({w.hx, v, 2 * w.count, v, start, expf(total_gate), dots, 1, width, piece.u, v, piece.count});
        start = Start::keep;
        weights += piece.count;
    }
    accumulate({w.dots, width, w.count, width, Start::zero, 0.f, w.x, k, 1, w.xt, width, k});
    // By the same sum as in `step`, which has no other dot product than this.
    for (int64_t s = 0; s < w.count; ++s) w.dots[s * width + w.count + s] = dot(w.x + s * k, w.x + (w.count + s) * k, k);
}

// to = e^since(s) to + sum over j < last of e^(since(s) - since(j)) (x_column . k_j) u_j
void add_rows(const Window& w, int64_t s, int64_t last, int64_t column, int64_t value_dim, float* to) {
    for (int64_t j = 0; j < last; ++j) {
        const float decay = j == s ? 1.f : expf(w.since[s] - w.since[j]);
        add_scaled(w.u + j * value_dim, decay * w.dots[j * w.padded + column], value_dim, to);
    }
}

void substitute(const DeltaRows& rows, int64_t head, int64_t first, Window& w) {
    const int64_t v = rows.value_dim;
    for (int64_t s = 0; s < w.count; ++s) {
        const float since = expf(w.since[s]);
        float *read = w.hx + s * v, *out = w.hx + (w.count + s) * v;
        scaled(read, since, v, read);
        add_rows(w, s, s, s, v, read);
        written_value(value_of(rows, first + s, head), w.beta[s], read, v, w.u + s * v);
        scaled(out, since, v, out);
        add_rows(w, s, s + 1, w.count + s, v, out);
        write_bf16(out, v, out_of(rows, first + s, head));
    }
}

void write_record(const float* from, int64_t count, bool is_bf16, void* ring, int64_t at) {
    if (is_bf16) return write_bf16(from, count, static_cast<uint16_t*>(ring) + at);
    memcpy(static_cast<float*>(ring) + at, from, size_t(count) * sizeof(float));
}

void write_records(const ReplayRing& ring, const Place& p, int64_t held_count, const Window& w) {
    const int64_t mask = ring.size - 1;
    for (int64_t s = 0; s < w.count; ++s) {
        const int64_t at = (ring.base[p.slot] + held_count + s) & mask;
        write_record(w.u + s * p.value_dim, p.value_dim, ring.is_bf16, ring.u, u_at(ring, p) + at * p.value_dim);
        gates_of(ring, p)[at] = w.log_gate[s];
        // The value heads of a key head share its keys; the first of them writes.
        if (p.head % (p.heads / p.key_heads) == 0)
            write_record(w.x + s * p.key_dim, p.key_dim, ring.is_bf16, ring.k, k_at(ring, p) + at * p.key_dim);
    }
}

// Sixteen floats a line. The product over a window goes down columns of the state, which memory serves badly; while keys and
// queries are prepared, the state comes in by rows.
void prefetch(const float* state, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(state + i, 0, 2);
}

void head_of_request(const ReplayRowsArgs& args, int64_t request, int64_t head, int64_t first, int64_t count) {
    const DeltaRows& rows = args.rows;
    const ReplayRing& ring = args.ring;
    const int64_t k = rows.key_dim, v = rows.value_dim, slot = rows.slots[request];
    Space space(static_cast<float*>(scratch(0, rows_floats(args, count) * int64_t(sizeof(float)))));
    const Place place{slot, head, key_head(rows, head), rows.heads, rows.key_heads, k, v};
    float* state = ring.state + (slot * rows.heads + head) * k * v;
    if (count > 1) prefetch(state, k * v);
    Window w = prepare(rows, head, first, count, space);
    const Records records = accepted_records(ring, place, space);
    float* weights = space.take(ring.history + count);
    float* dots = space.take(ring.history * w.padded);
    const float past = decays_behind(records.log_gate, records.count, 0.f, weights);
    read_past(args, state, records, weights, past, w, dots);
    substitute(rows, head, first, w);
    if (ring.flush[slot] != 0) {
        float* keys = space.take((ring.history + count) * k);
        const Piece pieces[3] = {records.pieces[0], records.pieces[1], {w.u, w.x, args.accepted ? count : 0}};
        float behind = 0.f;
        if (args.accepted) behind = decays_behind(w.log_gate, count, 0.f, weights + records.count);
        fold(state, pieces, 3, weights, decays_behind(records.log_gate, records.count, behind, weights), k, v, keys);
    }
    write_records(ring, place, records.count, w);
}

}  // namespace

void replay_rows(const ReplayRowsArgs& args) {
    for_heads(args.rows, [&](int64_t request, int64_t head, int64_t first, int64_t count) {
        head_of_request(args, request, head, first, count);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
