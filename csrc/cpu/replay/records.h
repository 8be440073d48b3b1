// The accepted records of one slot and head, as fp32 where they can be read. Include after isa.h.
#pragma once

#include <math.h>

#include "common/numbers.h"
#include "delta/products.h"
#include "replay/args.h"

namespace ocrquant::OCRQUANT_ISA::delta {

// Hands out pieces of one buffer, each on a cache line of its own.
class Space {
  public:
    explicit Space(float* at) : at_(at) {}
    float* take(int64_t floats) {
        float* const piece = at_;
        at_ += rounded(floats);
        return piece;
    }
    static int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }

  private:
    float* at_;
};

// Consecutive records: the ring read in place has two such pieces when it wraps.
struct Piece {
    const float* u;  // [count, V]
    const float* k;  // [count, K]
    int64_t count;
};

struct Records {
    Piece pieces[2];
    int64_t count;
    const float* log_gate;  // [count]
};

struct Place {
    int64_t slot, head, key_head, heads, key_heads, key_dim, value_dim;
};

inline int64_t records_floats(const ReplayRing& ring, int64_t key_dim, int64_t value_dim) {
    const int64_t wide = ring.is_bf16 ? ring.history * (key_dim + value_dim) : 0;
    return Space::rounded(ring.history) + Space::rounded(wide);
}

// Never beyond what fits, whatever a cursor of a slot that nobody uses may hold.
inline int64_t held(const ReplayRing& ring, int64_t slot) {
    const int64_t count = ring.write_pos[slot];
    return count < 0 ? 0 : count > ring.history ? ring.history : count;
}

inline float* gates_of(const ReplayRing& ring, const Place& p) {
    return ring.log_gate + (p.slot * p.heads + p.head) * ring.size;
}
inline int64_t u_at(const ReplayRing& ring, const Place& p) {
    return (p.slot * p.heads + p.head) * ring.size * p.value_dim;
}
inline int64_t k_at(const ReplayRing& ring, const Place& p) {
    return (p.slot * p.key_heads + p.key_head) * ring.size * p.key_dim;
}

inline void widen(const uint16_t* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = from_bf16(from[i]);
}

inline Records accepted_records(const ReplayRing& ring, const Place& p, Space& space) {
    const int64_t count = held(ring, p.slot), mask = ring.size - 1, base = ring.base[p.slot] & mask;
    const int64_t before_wrap = count < ring.size - base ? count : ring.size - base;
    Records found{{{nullptr, nullptr, before_wrap}, {nullptr, nullptr, count - before_wrap}}, count, nullptr};
    float* gates = space.take(ring.history);
    for (int64_t j = 0; j < count; ++j) gates[j] = gates_of(ring, p)[(base + j) & mask];
    found.log_gate = gates;
    if (!ring.is_bf16) {
        const float *u = static_cast<const float*>(ring.u) + u_at(ring, p), *k = static_cast<const float*>(ring.k) + k_at(ring, p);
        found.pieces[0].u = u + base * p.value_dim;
        found.pieces[0].k = k + base * p.key_dim;
        found.pieces[1].u = u;
        found.pieces[1].k = k;
        return found;
    }
    const uint16_t *u = static_cast<const uint16_t*>(ring.u) + u_at(ring, p);
    const uint16_t *k = static_cast<const uint16_t*>(ring.k) + k_at(ring, p);
    float* wide = space.take(ring.history * (p.key_dim + p.value_dim));
    found.pieces[0] = {wide, wide + count * p.value_dim, count};
    found.pieces[1] = {nullptr, nullptr, 0};
    for (int64_t j = 0; j < count; ++j) {
        const int64_t at = (base + j) & mask;
        widen(u + at * p.value_dim, p.value_dim, wide + j * p.value_dim);
        widen(k + at * p.key_dim, p.key_dim, wide + count * p.value_dim + j * p.key_dim);
    }
    return found;
}

// weights[j] = exp of the log gates behind record j, to which `after` is added; returns the sum of all of them and `after`.
inline float decays_behind(const float* log_gate, int64_t count, float after, float* weights) {
    for (int64_t j = count; j-- > 0;) {
        weights[j] = expf(after);
        after += log_gate[j];
    }
    return after;
}

// state = exp(total) state + sum over j of weights[j] k_j u_j^T over the pieces in order; `keys` holds one piece's K floats a record.
inline void fold(float* state, const Piece* pieces, int64_t num_pieces, const float* weights, float total_gate, int64_t key_dim,
                 int64_t value_dim, float* keys) {
    Start start = Start::scale;
    for (int64_t n = 0; n < num_pieces; ++n) {
        const Piece& piece = pieces[n];
        if (piece.count == 0) continue;
        for (int64_t j = 0; j < piece.count; ++j) {
            for (int64_t i = 0; i < key_dim; ++i) keys[j * key_dim + i] = weights[j] * piece.k[j * key_dim + i];
        }
        accumulate_by_rows(
            {state, value_dim, key_dim, value_dim, start, expf(total_gate), keys, 1, key_dim, piece.u, value_dim, piece.count});
        start = Start::keep;
        weights += piece.count;
    }
}

}  // namespace ocrquant::OCRQUANT_ISA::delta
