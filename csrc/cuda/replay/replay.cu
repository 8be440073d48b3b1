// ReplaySSM steps: rows verified behind a checkpoint and its records, with and without a fold, and the cursors behind a step.
#include "replay/fold.cuh"

namespace ocrquant {

OCRQUANT_DEVICE void zero_rows(const ReplayWindow& w, int head, int tile, int first, int rows) {
    for (int i = threadIdx.x; i < rows * TILE; i += WINDOW_THREADS)
        w.out[(int64_t(first + i / TILE) * w.heads + head) * w.value_dim + tile * TILE + i % TILE] = 0;
}

// Of the two specialisations each leaves the other's requests alone: both run over the whole batch, so that a graph need not
// know which slots fold. Padding is written by the one that does not fold.
template <int K, bool FOLDS>
__global__ void __launch_bounds__(WINDOW_THREADS, 3) replay_window(ReplayWindow w) {
    OCRQUANT_DYNAMIC_SHARED(raw);
    WindowShared<K>& s = *reinterpret_cast<WindowShared<K>*>(raw);
    const int request = int(blockIdx.x), head = int(blockIdx.y), tile = int(blockIdx.z);
    const int first = w.q_start[request], rows = w.q_start[request + 1] - first, slot = w.slots[request];
    if (rows <= 0) return;
    if (slot < 0) {
        if (!FOLDS) zero_rows(w, head, tile, first, rows);
        return;
    }
    if (FOLDS != (w.flush[slot] != 0)) return;
    const int most = w.history < MOST_RECORDS ? w.history : MOST_RECORDS;
    const Place p{request, head, head / (w.heads / w.key_heads), tile, slot, first, rows < MOST_ROWS ? rows : MOST_ROWS,
                  held_records(w.write_pos[slot], most), w.base[slot] & (w.size - 1)};
    float* const checkpoint = w.state + (int64_t(slot) * w.heads + head) * K * w.value_dim + tile * TILE;
    StatePart<K> state;
    state.load(checkpoint, w.value_dim);
    stage_rows<K>(w, p, s);
    stage_gates<K>(w, p, s);
    stage_records<K>(w, p, s);
    barrier();
    sum_gates<K>(p, s);
    barrier();
    score<K>(p, s);
    barrier();
    float read[2][4][4] = {};
    read_records<K>(p, s, read);
    state.scale(s.past);
    read_state<K>(s, state, read);
    gather_read<K>(s, read);
    const int thread = threadIdx.x;
    if (thread < TILE) {
        substitute<K>(s, thread);
    } else {
        write_records<K>(w, p, s, thread - TILE, WINDOW_THREADS - TILE);
    }
    barrier();
    write_values<K>(w, p, s);
    if (!FOLDS) return;
    fold<K>(w, p, s, state);
    state.store(checkpoint, w.value_dim);
}

constexpr int CURSOR_THREADS = 128;

__global__ void __launch_bounds__(CURSOR_THREADS) move_cursors(CursorMove move) {
    const int i = int(blockIdx.x) * CURSOR_THREADS + threadIdx.x;
    if (i >= move.requests || move.slots[i] < 0) return;
    const int slot = move.slots[i], accepted = move.accepted == nullptr ? -1 : move.accepted[i] < 0 ? 0 : move.accepted[i];
    const Cursor c = moved({move.base[slot], move.write_pos[slot], move.flush[slot], 0}, move, accepted);
    move.base[slot] = c.base;
    move.write_pos[slot] = c.held;
    move.flush[slot] = c.flush;
    move.flushes[slot] += c.folds;
}

template <int K>
cudaError_t launch_window(const ReplayWindow& w, bool folds, cudaStream_t stream) {
    const dim3 grid{unsigned(w.requests), unsigned(w.heads), unsigned(w.value_dim / TILE)};
    return launch(folds ? replay_window<K, true> : replay_window<K, false>, grid, WINDOW_THREADS, sizeof(WindowShared<K>), stream, w);
}

}  // namespace ocrquant

using namespace ocrquant;

extern "C" {

// One launch: the requests whose slots fold, or all others.
cudaError_t ocrquant_replay_window(const ReplayWindow* w, int32_t folds, cudaStream_t stream) {
    const bool fits = w->value_dim % TILE == 0 && w->heads % w->key_heads == 0 && w->mixed_stride % 8 == 0;
    if (!fits || w->heads > MOST_PARTS || w->value_dim / TILE > MOST_PARTS) return cudaErrorInvalidValue;
    if (w->requests <= 0) return cudaSuccess;
    switch (w->key_dim) {
        case 64: return launch_window<64>(*w, folds != 0, stream);
        case 128: return launch_window<128>(*w, folds != 0, stream);
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t ocrquant_move_cursors(const CursorMove* move, cudaStream_t stream) {
    if (move->requests <= 0) return cudaSuccess;
    const dim3 grid{unsigned(ceil_div(move->requests, CURSOR_THREADS))};
    return launch(move_cursors, grid, CURSOR_THREADS, 0, stream, *move);
}

}  // extern "C"
